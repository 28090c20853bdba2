"""One program under two policies: what differs, and how that is shown."""
