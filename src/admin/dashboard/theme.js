// Sets the chosen theme before the first paint, so that the page does not flash.
try {
  const chosen = localStorage.getItem('tidegate.theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: the system's theme.
}
