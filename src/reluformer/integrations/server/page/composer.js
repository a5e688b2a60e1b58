// The document to translate: typed, pasted, dropped, opened, or the example.

import { element, showProblem } from "./elements.js";
import { acceptDrops, textOf } from "./files.js";

const PLAIN = ".txt";

export class Composer {
  #text = element("document");
  #name = "";

  /** `formats` are the suffixes of files that the server takes apart itself; `sent` hears that it is to be translated. */
  constructor(formats, sent) {
    this.formats = formats;
    this.sent = sent;
    element("file").accept = ["text/*", ...formats].join();
    element("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#send();
    });
    this.#text.addEventListener("input", () => this.#text.value || this.#called(""));
    element("open").addEventListener("click", () => element("file").click());
    element("file").addEventListener("change", ({ target }) => {
      this.#read(target.files[0]);
      target.value = ""; // the same file can be opened again
    });
    element("example").addEventListener("click", () => this.#example());
    acceptDrops(element("drop"), (file) => this.#read(file));
  }

  /** What is to be translated: its text, the name of its file, and whether that tells of a format with markup. */
  get document() {
    const suffix = /\.[^.]+$/.exec(this.#name.toLowerCase())?.[0];
    return { text: this.#text.value, name: this.#name, marked: suffix !== PLAIN && this.formats.includes(suffix) };
  }

  #send() {
    if (this.#text.value.trim()) this.sent();
    else this.#text.focus();
  }

  #called(name) {
    this.#name = name;
    element("file-name").textContent = name;
  }

  async #read(file) {
    if (!file) return;
    element("problem").hidden = true;
    try {
      this.#text.value = await textOf(file);
    } catch (error) {
      showProblem(element("problem"), error);
      return;
    }
    this.#called(file.name);
    this.#text.focus();
  }

  async #example() {
    const response = await fetch("example.txt").catch(() => null);
    if (response?.ok) {
      this.#text.value = (await response.text()).trim();
      this.#called("");
    }
    this.#send();
  }
}
