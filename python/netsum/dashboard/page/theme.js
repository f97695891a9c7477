// Light or dark: as the system has it, or as chosen here. Pictures on canvases read their colours from the style sheet.

const KEY = "netsum-theme";
const ORDER = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let read = null;

export const chosen = () => localStorage.getItem(KEY) ?? "auto";

const apply = () => {
  const dark = chosen() === "dark" || (chosen() === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  read = null;
  listeners.forEach((listener) => listener());
};

export const next = () => {
  localStorage.setItem(KEY, ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length]);
  apply();
};

export const onTheme = (listener) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

/** The colours of the style sheet by name, such as `ours`. */
export const colours = () => {
  if (!read) {
    const style = getComputedStyle(document.documentElement);
    const names = ["page", "card", "ink", "soft", "edge", "ours", "ring", "bad", "warn", "good"];
    read = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    read.series = [1, 2, 3, 4, 5, 6].map((at) => style.getPropertyValue(`--series-${at}`).trim());
    read.load = [0, 1, 2, 3, 4, 5].map((at) => style.getPropertyValue(`--load-${at}`).trim());
  }
  return read;
};

system.addEventListener("change", apply);
apply();
