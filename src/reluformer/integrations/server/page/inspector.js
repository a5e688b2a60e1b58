// What the chosen word read: the document with ink where its words were read, and the memory slots that fired.

import { make, makeStop, makeSvg, rove } from "./elements.js";
import { chosen, readsOf, slotsOf } from "./reads.js";

const MARK = ".mark";
const END_SIGN = "¶";
const STRONGEST = 5;

export const number = (value) => (Math.abs(value) >= 0.0005 ? value.toFixed(3) : value.toExponential(1));
export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export class Inspector {
  #parts;
  #bubble = make("span", { className: "bubble", hidden: true, attr: { "aria-hidden": "true" } });

  constructor(parts) {
    this.#parts = parts;
    const { source } = parts;
    rove(source, MARK);
    for (const type of ["pointerover", "focusin"]) {
      source.addEventListener(type, (event) => this.#point(event.target.closest(MARK)));
    }
    for (const type of ["pointerleave", "focusout"]) source.addEventListener(type, () => this.#point(null));
  }

  /** Say something in place of findings. */
  tell(text) {
    const { hint, findings } = this.#parts;
    hint.textContent = text;
    hint.hidden = false;
    findings.hidden = true;
  }

  /** Draw what `word` of the translation read, with one layer and head, or (null) the mean over all; sum it up. */
  show(inspection, word, { layer, head }, before) {
    const layers = chosen(layer, inspection.layers);
    const heads = chosen(head, inspection.heads);
    if (!layers.length || !heads.length) {
      this.tell(`This model has ${inspection.layers} layers and ${inspection.heads} heads; choose one of those.`);
      return "";
    }
    const reads = readsOf(inspection, word, layers, heads);
    const { hint, findings, chosen: title } = this.#parts;
    title.replaceChildren("What ", make("q", { attr: { dir: "auto" } }, word.text), " read");
    this.#figures(inspection, reads);
    this.#source(inspection, reads, before);
    this.#slots(inspection, word, layers);
    hint.hidden = true;
    findings.hidden = false;
    const strongest = [...reads].sort((a, b) => b[1] - a[1]).slice(0, STRONGEST);
    const named = strongest.map(([place, weight]) => `${spoken(inspection.sourceWords[place])} ${number(weight)}`);
    return `${word.text} read ${reads.size} of ${inspection.sourceWords.length}: ${named.join(", ") || "nothing"}.`;
  }

  #figures(inspection, reads) {
    const total = [...reads.values()].reduce((sum, weight) => sum + weight, 0);
    const all = inspection.sourceWords.length;
    this.#parts.figures.replaceChildren(
      figure(`${reads.size} of ${all}`, "words and sentence ends (¶) read"),
      figure(number(total), "sum of the weights"),
    );
  }

  #source(inspection, reads, before) {
    const most = Math.max(...reads.values(), 0);
    const { source } = this.#parts;
    const pieces = [];
    let sentence = null;
    inspection.sourceWords.forEach((word, place) => {
      const starts = word.sentence !== sentence;
      pieces.push(starts ? before[word.sentence] : word.end ? "" : " ");
      sentence = word.sentence;
      const weight = reads.get(place);
      if (weight !== undefined) pieces.push(mark(word, weight, most));
      else if (!word.end) pieces.push(word.text);
    });
    source.replaceChildren(...pieces, this.#bubble);
    source.setAttribute("aria-label", `Document; ${reads.size} words were read, the arrow keys move between them`);
    makeStop(source, MARK);
    const strongest = source.querySelector(".mark.most");
    if (strongest) source.scrollTop = strongest.offsetTop - source.clientHeight / 2;
    else source.append(make("span", { className: "soft" }, " (nothing: every weight is exactly zero)"));
  }

  #slots(inspection, word, layers) {
    this.#parts.slots.replaceChildren(
      ...layers.map((layer) => {
        const { fired, of, strongest } = slotsOf(inspection, word, layer);
        const count = `${range(fired)} of ${of} fired`;
        const named = strongest.slice(0, STRONGEST).map(([slot, activation]) => `${slot} (${activation.toFixed(2)})`);
        return make(
          "div",
          { className: "slots" },
          make("p", {}, make("strong", {}, `Layer ${layer}`), ` ${count}`),
          barcode(strongest, of, `Layer ${layer}: ${count}`),
          make("p", { className: "soft" }, named.length ? `Strongest: ${named.join(", ")}` : "None"),
        );
      }),
    );
  }

  /** The number beside the mark under the pointer or the focus. */
  #point(mark) {
    this.#bubble.hidden = !mark;
    if (!mark) return;
    this.#bubble.textContent = mark.dataset.weight;
    const { source } = this.#parts;
    const room = source.clientWidth - this.#bubble.offsetWidth;
    const left = mark.offsetLeft + mark.offsetWidth / 2 - this.#bubble.offsetWidth / 2;
    this.#bubble.style.left = `${Math.max(0, Math.min(room, left))}px`;
    this.#bubble.style.top = `${mark.offsetTop - this.#bubble.offsetHeight - 2}px`;
  }
}

const spoken = (word) => (word.end ? "end of the sentence" : word.text);

function figure(value, label) {
  return make("span", {}, make("strong", {}, value), ` ${label}`);
}

/** A source word that was read; an `img` to assistive technology, since only its name says the weight. */
function mark(word, weight, most) {
  const text = word.end ? END_SIGN : word.text;
  const name = `${spoken(word)}: weight ${number(weight)}`;
  const element = make("span", { attr: { role: "img", "aria-label": name, tabindex: "-1" } }, text);
  element.className = ["mark", weight === most && "most", word.end && "end"].filter(Boolean).join(" ");
  element.dataset.weight = number(weight);
  element.style.setProperty("--ink-share", (weight / most).toFixed(3));
  return element;
}

/** "61", or "58 to 64" where the tokens of a word differ. */
function range(numbers) {
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  return least === most ? `${least}` : `${least} to ${most}`;
}

/** A line for each of the strongest slots, at its place among all, as long as its activation. */
function barcode(strongest, count, name) {
  const most = Math.max(...strongest.map(([, activation]) => Math.abs(activation)), 0);
  const lines = strongest.map(([slot, activation]) => {
    const height = 4 + (20 * Math.abs(activation)) / most;
    const title = makeSvg("title", {}, `slot ${slot}: ${activation.toFixed(3)}`);
    return makeSvg("rect", { x: slot, y: 24 - height, width: Math.max(1, count / 512), height }, title);
  });
  const box = { viewBox: `0 0 ${count} 24`, preserveAspectRatio: "none", role: "img", "aria-label": name };
  return makeSvg("svg", { class: "barcode", ...box }, ...lines);
}
