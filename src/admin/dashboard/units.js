// The units of limits by their names: tokens, and money as a decimal of the currency. The API has
// money in millionths.

import { exact, plain } from './dom.js';

const MILLION = 1e6;
const NAMES = {
  tokens: 'tokens',
  input: 'tokens of input',
  output: 'tokens of output',
  money: 'money',
};

/** The name of the units of a limit; empty for requests and costs. */
export const unitName = (counts) => NAMES[counts] ?? '';

/** Millionths of the currency as a decimal: 12.50; small amounts with up to six digits. */
export function money(millionths) {
  if (millionths >= MILLION || millionths === 0) {
    const hundredths = Math.floor(millionths / (MILLION / 100));
    return grouped((hundredths / 100).toFixed(2));
  }
  return (millionths / MILLION).toFixed(6).replace(/0{1,4}$/, '');
}

function grouped(decimal) {
  const [whole, rest] = decimal.split('.');
  return `${exact(Number(whole))}.${rest}`;
}

/** A number of units without their name. */
export const number = (units, counts) => (counts === 'money' ? money(units) : exact(units));

/** A number of units with their name, if they have one. */
export function amount(units, counts) {
  const name = unitName(counts);
  return name ? `${number(units, counts)} ${name}` : number(units, counts);
}

/** Used units against those of the limit: `3 of 10`, `81 of 100 tokens`. */
export const usedOf = (used, units, counts) =>
  `${number(used, counts)} of ${amount(units, counts)}`;

/** A rate of the API with the name of its units: `100 000 tokens/min`. */
export function rateText(rate, counts) {
  const [, units, window] = /^(\d+)(\/.*)$/.exec(rate.trim()) ?? [];
  if (!units || !unitName(counts)) return plain(rate);
  return `${amount(Number(units), counts)}${plain(window)}`;
}

/** Several rates as one text. */
export const ratesText = (rates, counts) =>
  (rates ?? []).map((rate) => rateText(rate, counts)).join(', ');
