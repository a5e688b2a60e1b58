// The requests of the page to the server, their errors, and the stream of a translation.

/** A refusal of the server, or its silence, in words for the reader. */
export class ServerError extends Error {
  constructor({ error, code = "", hint = "" }, status = 0) {
    super(asSentence(error));
    this.code = code;
    this.hint = asSentence(hint);
    this.status = status;
  }

  /** Trying the same again may help: the server is busy, restarting or gone. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** The server speaks in half sentences; on the page they stand alone. */
function asSentence(words) {
  const closed = !words || /[.!?]$/.test(words) ? words : `${words}.`;
  return closed.slice(0, 1).toUpperCase() + closed.slice(1);
}

const SILENT = {
  error: "The server does not answer.",
  code: "unreachable",
  hint: "Is `reluformer serve` still running? Start it again, then try again.",
};

export const CUT_OFF = {
  error: "The connection ended before the translation did.",
  code: "cut_off",
  hint: "What had arrived is kept. Try again to translate the whole document.",
};

let key = "";

/** The key that the server asks for, where it has one. */
export function useKey(given) {
  key = given;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(SILENT);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** Hints that mean something else to the reader of a page than to a program. */
const IN_OTHER_WORDS = {
  key_missing: { hint: "Write it into the field “Key”." },
  too_large: { hint: "Translate it in several pieces." },
};

async function refusal(response) {
  const told = await response.json().catch(() => null);
  const words = told?.error ? { ...told, ...IN_OTHER_WORDS[told.code] } : { error: `The server refused (${response.status} ${response.statusText}).` };
  return new ServerError(words, response.status);
}

export async function get(path) {
  return (await ask(path)).json();
}

/** A file translated by the server, as text. */
export async function translatedFile(file, { name, source, target }, signal) {
  const form = new FormData();
  for (const [field, value] of Object.entries({ file, model: name, source, target })) form.append(field, value);
  const { translatedFileUrl } = await (await ask("translate_file", { method: "POST", body: form, signal })).json();
  const kept = new URL(translatedFileUrl).pathname.split("/").slice(-3).join("/"); // the proxy may know another host
  return (await ask(kept, { signal })).text();
}

export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// ---------------------------------------------------------------- server-sent events

// The stream answers a POST request, so EventSource cannot read it.

/** The events of /translate/stream, up to and with `done`; throws a ServerError for `error` or a cut. */
export async function* translation(request, signal) {
  const response = await post("translate/stream", request, signal);
  let done = false;
  try {
    for await (const { event, data } of events(response.body)) {
      const told = JSON.parse(data);
      if (event === "error") throw new ServerError(told, told.status ?? 500);
      yield { event, ...told };
      done ||= event === "done";
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
  }
  if (!done) throw new ServerError(CUT_OFF);
}

/** Server-sent events out of a stream of bytes: {event, data} for each. */
export async function* events(bytes) {
  let event = "message";
  let data = [];
  for await (const line of lines(bytes)) {
    if (line === "") {
      if (data.length) yield { event, data: data.join("\n") };
      event = "message";
      data = [];
    } else if (!line.startsWith(":")) {
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === "event") event = value;
      if (field === "data") data.push(value);
    }
  }
}

async function* lines(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const found = (rest + value).split(/\r\n|\n/);
      rest = found.pop();
      yield* found;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
