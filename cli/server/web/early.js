// Runs before the first paint, as a classic script: the page must not flash in the other theme.
(() => {
  try {
    const theme = localStorage.getItem("llamba.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is switched off: the system's theme it is.
  }
})();
