// Before anything is painted: the theme that was chosen here, so that a page does not flash.
try {
  const chosen = localStorage.getItem('tidegate.theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch {
  // No storage: the system's theme.
}
