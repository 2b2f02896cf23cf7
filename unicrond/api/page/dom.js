// Elements and words. Text only ever becomes text nodes: what users wrote cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const pad = (number) => String(number).padStart(2, "0");

export function clock(seconds) {
  const t = new Date(seconds * 1000);
  return `${pad(t.getHours())}:${pad(t.getMinutes())}:${pad(t.getSeconds())}`;
}

export function day(seconds) {
  const t = new Date(seconds * 1000);
  return `${t.getFullYear()}-${pad(t.getMonth() + 1)}-${pad(t.getDate())}`;
}

export function when(seconds) {
  return seconds ? `${day(seconds)} ${clock(seconds)}` : "–";
}

export function howLong(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${pad(Math.floor(seconds % 60))} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${pad(Math.floor((seconds % 3600) / 60))} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export const ago = (seconds) => (seconds === null ? "never" : `${howLong(seconds)} ago`);

export const number = (value) => value.toLocaleString("en");

export const percent = (part) => ((part ?? null) === null ? "–" : `${(100 * part).toFixed(2)} %`);

// 1.23e16 as 12.3 P: prefixes that people read.
export function si(value) {
  if (!Number.isFinite(value) || value === 0) return "0";
  const power = Math.max(-1, Math.min(8, Math.floor(Math.log10(Math.abs(value)) / 3)));
  if (power <= 0) return value.toPrecision(3);
  return `${(value / 1000 ** power).toPrecision(3)} ${" kMGTPEZY"[power]}`;
}

export const natural = new Intl.Collator("en", { numeric: true }).compare;

// n1, n2, n3, n7 as n[1-3,7]; n08, n09, n10 as n[08-10].
export function folded(names) {
  const parts = names.map((name) => /^(.*?)(\d*)$/.exec(name).slice(1));
  const padded = new Set(parts.filter(([, digits]) => digits.startsWith("0")).map(widthOf));
  const groups = new Map();
  for (const part of parts) {
    const key = padded.has(widthOf(part)) ? widthOf(part) : part[0];
    if (!groups.has(key)) groups.set(key, { stem: part[0], digits: [] });
    groups.get(key).digits.push(part[1]);
  }
  return [...groups.values()].map(foldedGroup).join(",");
}

const widthOf = ([stem, digits]) => `${stem}\0${digits.length}`;

function foldedGroup({ stem, digits }) {
  if (digits.length === 1) return stem + digits[0];
  const sorted = digits.toSorted((a, b) => a - b);
  const ranges = [];
  for (const one of sorted) {
    const last = ranges.at(-1);
    if (last && Number(one) === Number(last[1]) + 1) last[1] = one;
    else ranges.push([one, one]);
  }
  return `${stem}[${ranges.map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(",")}]`;
}
