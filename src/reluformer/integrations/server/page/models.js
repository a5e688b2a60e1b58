// The models that are served: their names, languages and rules.

const PLACES = {
  cross_attention: "cross attention",
  encoder_attention: "encoder attention",
  decoder_attention: "decoder attention",
  ffn: "feed-forward",
};

const ruleName = (rule) => (typeof rule === "string" ? rule : (rule?.name ?? ""));

/** A model as /models tells it, with the rule of its cross attention as text. */
export function described(model) {
  return { ...model, cross: ruleName(model.rule?.cross_attention ?? model.rule) };
}

/** "relu in cross attention, encoder attention and decoder attention; relu_plain in feed-forward". */
export function rulesOf(model) {
  const places = new Map();
  for (const [place, title] of Object.entries(PLACES)) {
    const name = ruleName(model.rule?.[place]);
    if (name) places.set(name, [...(places.get(name) ?? []), title]);
  }
  const list = new Intl.ListFormat("en", { type: "conjunction" });
  return [...places].map(([name, titles]) => `${name} in ${list.format(titles)}`).join("; ") || model.cross;
}

export function languageName(code) {
  try {
    return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

export const directionOf = ({ source, target }) => `${languageName(source)} → ${languageName(target)}`;

/** What the reader can choose: models of one direction side by side, first, and each alone. */
export function choices(models) {
  const first = models.find((model) => model.default) ?? models[0];
  const together = models.filter(({ source, target }) => source === first.source && target === first.target);
  const alone = models.map((model) => ({ title: model.name, models: [model] }));
  return together.length > 1 ? [{ title: "Side by side", models: together }, ...alone] : alone;
}
