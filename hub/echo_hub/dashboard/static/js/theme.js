/** Light, dark, or as the system has it; and the colours that charts take from the style sheet. */

const KEY = "echo-theme";
const ORDER = ["system", "light", "dark"];

export function current() {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.includes(kept) ? kept : "system";
  } catch {
    return "system"; // storage is forbidden here
  }
}

export function apply(theme = current()) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** The next theme in turn; it is kept for the next visit. */
export function next() {
  const theme = ORDER[(ORDER.indexOf(current()) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // it holds for this page only
  }
  apply(theme);
  dispatchEvent(new CustomEvent("echo-theme"));
  return theme;
}

/** The value of a custom property, like "--c1". */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Call `fn` whenever colours change, until `signal` aborts. */
export function onChange(fn, signal) {
  addEventListener("echo-theme", fn, { signal });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", fn, { signal });
}
