// What the page asks of the server, and what can go wrong with it.

/** A refusal of the server, or its silence, in words for the reader. */
export class ServerError extends Error {
  constructor({ error, code = "", hint = "" }, status = 0) {
    super(error);
    this.code = code;
    this.hint = hint;
    this.status = status;
  }

  /** Trying the same again may help: the server is busy, restarting or gone. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
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

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(SILENT);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const told = await response.json().catch(() => null);
  const words = told?.error ? told : { error: `The server refused (${response.status} ${response.statusText}).` };
  return new ServerError(words, response.status);
}

export async function get(path) {
  return (await ask(path)).json();
}

export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}
