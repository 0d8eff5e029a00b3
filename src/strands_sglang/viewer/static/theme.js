// Light, dark, or as the system: remembered by the browser.
const THEMES = ["system", "light", "dark"];

export function themeSign() {
  return { system: "◐", light: "☀", dark: "☾" }[currentTheme()];
}

function currentTheme() {
  const theme = document.documentElement.dataset.theme;
  return THEMES.includes(theme) ? theme : "system";
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("strands-sglang-theme", theme);
  } catch { /* a private window forgets it */ }
}

export function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);
}

export function startTheme() {
  try {
    setTheme(localStorage.getItem("strands-sglang-theme") || "system");
  } catch {
    setTheme("system");
  }
}
