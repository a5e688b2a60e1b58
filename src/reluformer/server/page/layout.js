// Sentences stand in the translation as they stand in the document.

/** The document so far: what stands before each sentence, and the sentences that have arrived. */
export function laidOut({ before, after }, sentences) {
  const text = sentences.map((sentence, index) => before[index] + sentence).join("");
  return sentences.length === before.length ? text + after : text;
}

/** The words of a sentence and the white space between them, in turn; words have odd places. */
export function words(sentence) {
  return sentence.split(/(\S+)/);
}
