// The page as a whole: which document goes to which models, and which word is inspected.

import { get, useKey } from "./api.js";
import { Column } from "./column.js";
import { Composer } from "./composer.js";
import { Announcer, element, make, showProblem } from "./elements.js";

const announcer = new Announcer(element("announcer"));

let composer = null;
let offers = [];
let columns = [];
let shown = null; // the offer that the columns belong to
let abort = null; // of the translation under way

async function start() {
  element("problem").hidden = true;
  try {
    const [models, settings] = await Promise.all([get("models"), get("frontend/settings")]);
    introduce(models.map(described));
    element("key-choice").hidden = !settings.keyRequired;
    composer ??= new Composer(settings.supportedFilesFormat, translate);
    element("translate").disabled = false;
  } catch (error) {
    showProblem(element("problem"), error, start);
  }
}

function introduce(models) {
  offers = choices(models);
  const rules = models.flatMap((model) => [make("dt", {}, model.name), make("dd", {}, rulesOf(model))]);
  element("rules").replaceChildren(...rules);
  element("models").replaceChildren(...offers.map((offer, place) => make("option", { value: place }, offer.title)));
  element("models-choice").hidden = offers.length < 2;
  describe();
}

const offer = () => offers[Number(element("models").value)];

function describe() {
  const [model] = offer().models;
  element("direction").textContent = directionOf(model);
  element("example").hidden = !model.source.startsWith("en");
}

/** Columns for the models of the offer; those that stand already are used again. */
function prepareColumns(chosen) {
  if (shown === chosen) return;
  shown = chosen;
  const several = chosen.models.length > 1;
  columns = chosen.models.map(
    (model) => new Column(element("column-template"), model, several ? model.name : "", { heard, picked }),
  );
  element("columns").replaceChildren(...columns.map((column) => column.root));
  element("columns").classList.toggle("several", several);
  offerNumbers(element("layer"), "layers", chosen.models);
  offerNumbers(element("head"), "heads", chosen.models);
}

function offerNumbers(select, what, models) {
  const most = Math.max(...models.map((model) => model[what]));
  const numbers = [...Array(most).keys()].map((place) => make("option", { value: place }, String(place)));
  select.replaceChildren(make("option", { value: "" }, "mean"), ...numbers);
}

async function translate() {
  if (abort) return; // one at a time
  abort = new AbortController();
  prepareColumns(offer());
  look();
  element("results").hidden = false;
  element("problem").hidden = true;
  working(true);
  announcer.sayInstead("Translating.");
  await Promise.all(columns.map((column) => column.translate(composer.document, abort.signal)));
  abort = null;
  working(false);
  if (sharedProblem()) return;
  announcer.say(columns.map((column) => `${column.model.name}: ${column.parts.status.textContent}.`).join(" "));
}

/** All models were refused alike, before anything arrived: said once, in place of the columns. */
function sharedProblem() {
  const [first, ...others] = columns.map((column) => (column.sentences.length ? null : column.problem));
  if (!first || !others.every((other) => other?.message === first.message)) return false;
  element("results").hidden = true;
  showProblem(element("problem"), first, translate);
  return true;
}

/** Stop takes the place of Translate, and the focus with it. */
function working(busy) {
  const [coming, going] = busy ? [element("stop"), element("translate")] : [element("translate"), element("stop")];
  const hadFocus = document.activeElement === going;
  coming.hidden = false;
  going.hidden = true;
  if (hadFocus) coming.focus();
}

/** Sentences of the first column are read out; the others say the same in other words. */
function heard(column, sentence) {
  if (column === columns[0]) announcer.say(sentence);
}

/** A word was chosen in one column: the others look at the same word, if they have it. */
function picked(column, word) {
  const place = column.words.indexOf(word);
  for (const other of columns) {
    const same = other === column ? word : other.counterpart(word, place);
    const drawn = other.choose(same, `This translation has no “${word.textContent}” in that sentence.`);
    if (other === column) drawn.then((summary) => summary && announcer.sayInstead(summary));
  }
}

/** All columns show the chosen layer and head. */
function look() {
  const number = (select) => (select.value === "" ? null : Number(select.value));
  const view = { layer: number(element("layer")), head: number(element("head")) };
  for (const column of columns) {
    column.view = view;
    column.draw();
  }
}

// ---------------------------------------------------------------- models

const PLACES = {
  cross_attention: "cross attention",
  encoder_attention: "encoder attention",
  decoder_attention: "decoder attention",
  ffn: "feed-forward",
};

const ruleName = (rule) => (typeof rule === "string" ? rule : (rule?.name ?? ""));

/** A model as /models tells it, with the rule of its cross attention as text. */
function described(model) {
  return { ...model, cross: ruleName(model.rule?.cross_attention ?? model.rule) };
}

/** "relu in cross attention, encoder attention and decoder attention; relu_plain in feed-forward". */
function rulesOf(model) {
  const places = new Map();
  for (const [place, title] of Object.entries(PLACES)) {
    const name = ruleName(model.rule?.[place]);
    if (name) places.set(name, [...(places.get(name) ?? []), title]);
  }
  const list = new Intl.ListFormat("en", { type: "conjunction" });
  return [...places].map(([name, titles]) => `${name} in ${list.format(titles)}`).join("; ") || model.cross;
}

function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

const directionOf = ({ source, target }) => `${languageName(source)} → ${languageName(target)}`;

/** What the reader can choose: models of one direction side by side, first, and each alone. */
function choices(models) {
  const first = models.find((model) => model.default) ?? models[0];
  const together = models.filter(({ source, target }) => source === first.source && target === first.target);
  const alone = models.map((model) => ({ title: model.name, models: [model] }));
  return together.length > 1 ? [{ title: "Side by side", models: together }, ...alone] : alone;
}

// ---------------------------------------------------------------- start

element("translate").disabled = true;
element("columns").addEventListener("again", translate);
element("stop").addEventListener("click", () => abort?.abort());
element("models").addEventListener("change", describe);
element("layer").addEventListener("change", look);
element("head").addEventListener("change", look);
element("key").addEventListener("change", ({ target }) => useKey(target.value));
start();
