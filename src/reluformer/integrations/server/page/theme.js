// Runs before the first paint, so that a page kept dark does not flash white.
"use strict";

(() => {
  const KEY = "reluformer-theme";
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");

  function kept() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden; the system's choice holds then
    }
  }

  function keep(theme) {
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // the choice lasts as long as the page
    }
  }

  function apply(theme) {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = theme === "dark" ? "Light theme" : "Dark theme";
  }

  const systems = () => (wantsDark.matches ? "dark" : "light");
  const current = () => document.documentElement.dataset.theme;

  apply(kept() ?? systems());
  wantsDark.addEventListener("change", () => kept() ?? apply(systems()));
  document.addEventListener("DOMContentLoaded", () => {
    apply(current());
    document.getElementById("theme").addEventListener("click", () => {
      const theme = current() === "dark" ? "light" : "dark";
      keep(theme);
      apply(theme);
    });
  });
})();
