// From the weights of tokens to those of words. Pure functions; only weights that are not zero ever appear.

/** Tokens put together: [{text, sentence, tokens: places, end: whether it is no text but the end of a sentence}]. */
export function wordsOf(tokens) {
  const words = [];
  let last = null;
  tokens.forEach(({ text, word, sentence }, place) => {
    const end = word === null;
    if (last && !end && last.word === word && last.sentence === sentence) {
      last.text += text;
      last.tokens.push(place);
    } else {
      last = { text, word, sentence, tokens: [place], end };
      words.push(last);
    }
  });
  for (const word of words) word.text = word.text.trim();
  return words;
}

/** The words of each sentence, without its end: sentence -> [word]. */
export function bySentence(words) {
  const sentences = new Map();
  for (const word of words) {
    if (!sentences.has(word.sentence)) sentences.set(word.sentence, []);
    if (!word.end) sentences.get(word.sentence).push(word);
  }
  return sentences;
}

/** The numbers of the layers (or heads) that a choice means: one of them, or all. */
export function chosen(choice, count) {
  return choice === null ? [...Array(count).keys()] : choice < count ? [choice] : [];
}

/**
 * What a target word read: Map of source word -> weight.
 * Source tokens of a word add up; over the tokens of the target word, and over layers and heads, it is the mean.
 */
export function readsOf(inspection, target, layers, heads) {
  const { wordOfToken } = inspection;
  const share = 1 / (target.tokens.length * layers.length * heads.length);
  const weights = new Map();
  for (const layer of layers) {
    for (const head of heads) {
      for (const token of target.tokens) {
        for (const [place, weight] of inspection.reads[layer][head][token]) {
          const word = wordOfToken[place];
          weights.set(word, (weights.get(word) ?? 0) + weight * share);
        }
      }
    }
  }
  return weights;
}

/** The slots of one layer that fired for a word: [[slot, mean activation]], strongest first. */
export function slotsOf(inspection, target, layer) {
  const activations = new Map();
  for (const token of target.tokens) {
    for (const [slot, activation] of inspection.slots[layer][token].fired) {
      activations.set(slot, (activations.get(slot) ?? 0) + activation / target.tokens.length);
    }
  }
  return [...activations].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
}

/** An answer of /inspect with its tokens put together to words. */
export function prepared(answer) {
  const sourceWords = wordsOf(answer.source_tokens);
  const targetWords = wordsOf(answer.target_tokens);
  const wordOfToken = [];
  sourceWords.forEach((word, place) => word.tokens.forEach((token) => (wordOfToken[token] = place)));
  return { ...answer, sourceWords, targetWords, wordOfToken, targetSentences: bySentence(targetWords) };
}
