// From the weights of tokens to those of words. Pure functions; only weights that are not zero appear.

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
export function wordsIn(sentence) {
  return spacesAndWords(sentence).filter((_, place) => place % 2 === 1);
}

/**
 * Tokens put together: [{text, sentence, tokens: their places, end}].
 * The last of each sentence is no word but its `end`, which is read like one.
 */
export function wordsOf(tokens) {
  const words = [];
  tokens.forEach(({ text, word, sentence }, place) => {
    const last = words.at(-1);
    if (last && last.word === word && last.sentence === sentence) {
      last.text += text;
      last.tokens.push(place);
    } else {
      words.push({ text, word, sentence, tokens: [place] });
    }
  });
  words.forEach((word, place) => (word.end = words[place + 1]?.sentence !== word.sentence));
  return words;
}

/** Words spelled as in `sentences`: the bytes of a rare character may lie in several tokens. */
function spelled(words, sentences) {
  const written = sentences.flatMap(wordsIn);
  const read = words.filter((word) => !word.end);
  if (written.length === read.length) read.forEach((word, place) => (word.text = written[place]));
  return words;
}

/** An answer of /inspect with its tokens put together to the words of the document and its translation. */
export function prepared(answer, sources, translations) {
  const sourceWords = spelled(wordsOf(answer.source_tokens), sources);
  const targetWords = spelled(wordsOf(answer.target_tokens), translations).filter((word) => !word.end);
  const wordOfToken = [];
  sourceWords.forEach((word, place) => word.tokens.forEach((token) => (wordOfToken[token] = place)));
  return { ...answer, sourceWords, targetWords, wordOfToken };
}

/** The numbers of the layers (or heads) that a choice means: one of them, or (null) all. */
export function chosen(choice, count) {
  return choice === null ? [...Array(count).keys()] : choice < count ? [choice] : [];
}

/**
 * What a target word read: Map of source word -> weight.
 * Source tokens of a word add up; over the tokens of the target word, and over layers and heads, it is the mean.
 */
export function readsOf(inspection, target, layers, heads) {
  const share = 1 / (target.tokens.length * layers.length * heads.length);
  const weights = new Map();
  for (const layer of layers) {
    for (const head of heads) {
      for (const token of target.tokens) {
        for (const [place, weight] of inspection.reads[layer][head][token]) {
          const word = inspection.wordOfToken[place];
          weights.set(word, (weights.get(word) ?? 0) + weight * share);
        }
      }
    }
  }
  return weights;
}

/** Slots of one layer for a word: how many fired for each of its tokens, of how many, and the strongest by their mean. */
export function slotsOf(inspection, target, layer) {
  const rows = target.tokens.map((token) => inspection.slots[layer][token]);
  const activations = new Map();
  for (const [slot, activation] of rows.flatMap((row) => row.top)) {
    activations.set(slot, (activations.get(slot) ?? 0) + activation / rows.length);
  }
  const strongest = [...activations].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  return { fired: rows.map((row) => row.fired), of: rows[0].of, strongest };
}
