// The switch between the system's theme, light and dark.

import { setAttr, setText } from './dom.js';

const PLACE = 'tidegate.theme';
const NEXT = { auto: 'light', light: 'dark', dark: 'auto' };
const WORDS = { auto: 'as the system has it', light: 'light', dark: 'dark' };

export function startTheme(button, name) {
  const root = document.documentElement;
  const show = () => {
    const theme = root.dataset.theme ?? 'auto';
    setText(name, theme[0].toUpperCase() + theme.slice(1));
    setAttr(button, 'title', `Theme: ${WORDS[theme]}`);
  };
  button.addEventListener('click', () => {
    const next = NEXT[root.dataset.theme ?? 'auto'];
    if (next === 'auto') delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      if (next === 'auto') localStorage.removeItem(PLACE);
      else localStorage.setItem(PLACE, next);
    } catch {
      // Without storage the choice is kept until the page is closed.
    }
    show();
  });
  show();
}
