// Where the sentences of a document stand in it, so that translations can stand the same way.

const escaped = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** What stands before each sentence, and behind the last one. A sentence may be wrapped over lines in the text. */
export function gaps(text, sentences) {
  const found = [];
  let place = 0;
  for (const sentence of sentences) {
    const words = sentence.split(/\s+/).filter(Boolean).map(escaped);
    const pattern = new RegExp(words.join("\\s+"), "gu");
    pattern.lastIndex = place;
    const match = words.length ? pattern.exec(text) : null;
    found.push(match ? text.slice(place, match.index) : found.length ? " " : "");
    if (match) place = pattern.lastIndex;
  }
  return { before: found, after: text.slice(place) };
}

/** The document so far: sentences that have not arrived, and all behind them, are left out. */
export function laidOut({ before, after }, sentences) {
  const missing = before.findIndex((_, index) => sentences[index] === undefined);
  const arrived = missing < 0 ? before : before.slice(0, missing);
  const text = arrived.map((gap, index) => gap + sentences[index]).join("");
  return missing < 0 ? text + after : text;
}

/** The words of a sentence and the white space between them, in turn; words have odd places. */
export function words(sentence) {
  return sentence.split(/(\S+)/);
}
