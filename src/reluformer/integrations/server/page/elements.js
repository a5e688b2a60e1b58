// The elements of the page: creating them, moving between them, announcing changes to screen readers.
// Text is only ever set as text, so a document cannot add markup to the page.

export const element = (id) => document.getElementById(id);

/** A new element with properties, attributes (`attr`) and children: elements or text. */
export function make(tag, { attr = {}, ...properties } = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attr)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** The elements of a template's copy by the name in their `data-part`. */
export function copyOf(template) {
  const root = template.content.firstElementChild.cloneNode(true);
  const parts = {};
  for (const element of root.querySelectorAll("[data-part]")) parts[element.dataset.part] = element;
  return { root, parts };
}

/** Show an error with its hint, and a way to try again where that may help. */
export function showProblem(box, error, again = null) {
  const words = make("div", {}, make("strong", {}, error.message));
  if (error.hint) words.append(make("p", {}, error.hint));
  box.replaceChildren(words);
  if (again && error.passing) {
    const button = make("button", { type: "button", className: "quiet" }, "Try again");
    button.addEventListener("click", again);
    box.append(button);
  }
  box.hidden = false;
}

// ---------------------------------------------------------------- roving focus

// Many words have one tab stop: arrow keys move between them, Home and End go to the first and the last.

const FORWARD = { ArrowRight: 1, ArrowLeft: -1 };
const DOWN = { ArrowDown: 1, ArrowUp: -1 };

/** Let arrow keys move the focus between the elements of `container` that match; `moved` hears of each move. */
export function rove(container, selector, moved = () => {}) {
  const items = () => [...container.querySelectorAll(selector)];
  container.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const current = event.target.closest(selector);
    const next = current && target(event.key, current, items());
    if (!next) return;
    event.preventDefault();
    next.focus();
    moved(next);
  });
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) makeStop(container, selector, item);
  });
}

/** `item` is what the tab key reaches; by default the first. */
export function makeStop(container, selector, item = container.querySelector(selector)) {
  for (const stop of container.querySelectorAll('[tabindex="0"]')) stop.tabIndex = -1;
  if (item) item.tabIndex = 0;
}

function target(key, current, items) {
  if (key === "Home") return items[0];
  if (key === "End") return items.at(-1);
  if (key in FORWARD) {
    const along = getComputedStyle(current).direction === "rtl" ? -1 : 1;
    return items[items.indexOf(current) + along * FORWARD[key]];
  }
  return key in DOWN ? onNextLine(current, items, DOWN[key]) : undefined;
}

/** The nearest item on the next line that has one, above (-1) or below (1). */
function onNextLine(current, items, way) {
  const middle = (box) => (box.left + box.right) / 2;
  const here = current.getBoundingClientRect();
  let best;
  let least = [Infinity, Infinity];
  for (const item of items) {
    const box = item.getBoundingClientRect();
    const down = Math.round(way * (box.top - here.top));
    if (down < here.height / 2) continue;
    const off = [down, Math.abs(middle(box) - middle(here))];
    if (off[0] < least[0] || (off[0] === least[0] && off[1] < least[1])) [best, least] = [item, off];
  }
  return best;
}

// ---------------------------------------------------------------- announcements

// Messages that arrive shortly after each other are announced together.

const PAUSE = 4000;

export class Announcer {
  #region;
  #waiting = [];
  #timer = null;

  constructor(region) {
    this.#region = region;
  }

  /** Say it soon, together with whatever else comes until then. */
  say(text) {
    this.#waiting.push(text);
    if (this.#timer === null) this.#speak();
  }

  /** Say only this: what was not said yet is out of date. */
  sayInstead(text) {
    this.#waiting = [];
    this.say(text);
  }

  #speak() {
    this.#timer = null;
    if (!this.#waiting.length) return;
    this.#region.textContent = this.#waiting.join(" ");
    this.#waiting = [];
    this.#timer = setTimeout(() => this.#speak(), PAUSE);
  }
}
