// A translation as it arrives. The stream answers a POST, so EventSource cannot read it.

import { CUT_OFF, post, ServerError } from "./api.js";

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
