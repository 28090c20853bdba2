"""Who holds what: a type as a picture of its devices."""
