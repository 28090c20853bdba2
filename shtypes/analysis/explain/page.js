"use strict";
// The page works without this: it adds the choice of a theme, and Escape to close what a focus has opened.
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const shown = root.dataset.theme || (dark.matches ? "dark" : "light");
  root.dataset.theme = shown === "dark" ? "light" : "dark";
});
for (const comm of document.querySelectorAll(".comm")) {
  comm.addEventListener("keydown", (event) => event.key === "Escape" && comm.classList.add("closed"));
  for (const kind of ["focusout", "mouseleave"]) comm.addEventListener(kind, () => comm.classList.remove("closed"));
}
