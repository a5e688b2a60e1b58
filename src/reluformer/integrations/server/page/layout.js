// Sentences stand in the translation as they stand in the document.

/** The document so far: what stands before each sentence, and the sentences that have arrived. */
export function laidOut({ before, after }, sentences) {
  const text = sentences.map((sentence, index) => before[index] + sentence).join("");
  return sentences.length === before.length ? text + after : text;
}

// What Python's str.split takes for white space, which is not quite what \s is.
const WORD = /([^\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+)/;

/** White space and the words of a sentence, in turn; words have odd places. */
export function spacesAndWords(sentence) {
  return sentence.split(WORD);
}

/** The words alone. */
export function words(sentence) {
  return spacesAndWords(sentence).filter((_, place) => place % 2 === 1);
}
