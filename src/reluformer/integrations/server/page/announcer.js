// Tells screen readers what arrives: what came in the meantime is said together, not one by one.

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
