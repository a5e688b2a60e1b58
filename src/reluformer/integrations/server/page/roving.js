// Many words, one tab stop: arrow keys move between them, Home and End to the first and last.

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
