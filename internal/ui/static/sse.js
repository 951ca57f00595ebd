// Reading server-sent events from a response: an EventSource can't send the
// header that says who asks.

const longest = 4 << 20;

/** Yields the events of each piece that came, none for a comment. */
export async function* read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (text + value.replaceAll("\r", "")).split("\n\n");
      text = blocks.pop();
      if (text.length > longest) throw new Error("an event is too long");
      yield blocks.flatMap(dataOf);
    }
  } finally {
    reader.cancel().catch(() => {}); // it is over anyhow
  }
}

function dataOf(block) {
  const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
  return data.length > 0 ? [JSON.parse(data.join("\n"))] : [];
}
