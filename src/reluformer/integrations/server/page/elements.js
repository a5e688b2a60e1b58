// Building the page. Text is only ever set as text, so a document cannot bring markup into it.

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
