// A chat with the server that this page comes from. Text of the model and of the user is only ever
// put into text nodes.
"use strict";

const at = (id) => document.getElementById(id);
const log = at("log"), prompt = at("prompt"), send = at("send"), scroll = at("scroll");

let model = { id: "", has_chat_template: true };
let messages = [];
let running = null; // the AbortController of the answer that is being written

function headers() {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function failure(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

async function loadModel() {
  const response = await fetch("v1/models", { headers: headers() });
  if (response.status === 401) {
    at("empty-hint").textContent = "This server asks for an API key: enter it in the settings.";
    return;
  }
  if (!response.ok) throw new Error(await failure(response));
  [model] = (await response.json()).data;
  at("model").textContent = model.id;
  document.title = `${model.id} · textmill`;
  const chats = model.has_chat_template;
  at("system-field").hidden = !chats;
  at("max-tokens").max = model.max_model_len;
  if (!chats) {
    at("empty-title").textContent = "Let your model continue a text";
    at("empty-hint").textContent = "This model has no chat template. It continues each text on its own, without earlier messages.";
    prompt.placeholder = "Write the beginning of a text";
  } else {
    at("empty-hint").textContent = "Your messages go to this server only and are not stored.";
  }
}

function number(id) {
  const field = at(id);
  return field.value === "" || !field.checkValidity() ? undefined : field.valueAsNumber;
}

function request(text) {
  const shared = {
    model: model.id,
    stream: true,
    stream_options: { include_usage: true },
    temperature: number("temperature"),
    top_p: number("top-p"),
    max_tokens: number("max-tokens"),
    seed: number("seed"),
  };
  if (!model.has_chat_template) return ["v1/completions", { ...shared, prompt: text }];
  const system = at("system").value.trim();
  const first = system ? [{ role: "system", content: system }] : [];
  return ["v1/chat/completions", { ...shared, messages: [...first, ...messages] }];
}

// The objects of a stream of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function row(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const label = document.createElement("span");
  label.className = "hidden";
  label.textContent = role === "user" ? "You" : "Model";
  const body = document.createElement("p");
  body.className = "text";
  body.dir = "auto";
  body.append(document.createTextNode(text));
  item.append(label, body);
  log.append(item);
  at("empty").hidden = true;
  return item;
}

// Text is shown once per frame, and the page follows it unless the reader has scrolled up.
function writer(item) {
  const node = item.querySelector(".text").firstChild;
  let waiting = "";
  const flush = () => {
    const follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
    node.appendData(waiting);
    waiting = "";
    if (follows) scroll.scrollTop = scroll.scrollHeight;
  };
  return {
    add(text) {
      if (!waiting) requestAnimationFrame(flush);
      waiting += text;
    },
    flush,
    text: () => node.data + waiting,
  };
}

function facts(item, parts, text) {
  const line = document.createElement("div");
  line.className = "facts";
  if (text && navigator.clipboard) { // which browsers keep to loopback and https
    const copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = "Copy"; }, 1500);
    });
    line.append(copy);
  }
  for (const part of parts) {
    const span = document.createElement("span");
    span.textContent = part;
    line.append(span);
  }
  item.append(line);
}

const ms = (value) => (value < 1000 ? `${value.toFixed(0)} ms` : `${(value / 1000).toFixed(1)} s`);

async function answer(text) {
  const item = row("assistant", "");
  item.classList.add("waiting");
  scroll.scrollTop = scroll.scrollHeight;
  const out = writer(item);
  const abort = running = new AbortController();
  const started = performance.now();
  let first = null, last = null, tokens = null, finish = null, problem = null;
  try {
    const [path, body] = request(text);
    const response = await fetch(path, {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal,
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) tokens = event.usage.completion_tokens;
      const choice = event.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const piece = choice.delta ? choice.delta.content : choice.text;
      if (!piece) continue;
      last = performance.now();
      first ??= last;
      item.classList.replace("waiting", "writing");
      out.add(piece);
    }
  } catch (error) {
    problem = error.name === "AbortError" ? "stopped" : error.message;
  }
  out.flush();
  item.classList.remove("waiting", "writing");
  running = null;
  const parts = [];
  if (problem === "stopped" || finish === "length") parts.push(problem ?? "reached the answer limit");
  if (first !== null) parts.push(`first token ${ms(first - started)}`);
  if (tokens > 1 && last > first) parts.push(`${(((tokens - 1) * 1000) / (last - first)).toFixed(1)} tokens/s`);
  if (tokens !== null) parts.push(`${tokens} tokens`);
  if (problem !== null && problem !== "stopped") {
    const line = document.createElement("p");
    line.className = "text failed";
    line.setAttribute("role", "alert");
    line.textContent = problem;
    item.append(line);
  }
  facts(item, parts, out.text());
  scroll.scrollTop = scroll.scrollHeight;
  return out.text();
}

function update() {
  send.textContent = running ? "Stop" : "Send";
  send.disabled = !running && prompt.value.trim() === "";
}

async function submit() {
  if (running) return running.abort();
  const text = prompt.value;
  if (text.trim() === "") return;
  prompt.value = "";
  row("user", text);
  const before = messages;
  messages = [...messages, { role: "user", content: text }];
  const asked = messages;
  const answered = answer(text);
  update();
  const said = await answered;
  // A new chat may have begun meanwhile.
  if (messages === asked) messages = said ? [...asked, { role: "assistant", content: said }] : before;
  update();
  prompt.focus();
}

function newChat() {
  running?.abort();
  messages = [];
  log.replaceChildren();
  at("empty").hidden = false;
  prompt.focus();
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
}

at("composer").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
prompt.addEventListener("input", update);
prompt.addEventListener("keydown", (event) => {
  // Enter that ends the input of a character by its sound belongs to the input method.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) submit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !at("settings").open) running.abort();
});
at("new").addEventListener("click", newChat);
at("open-settings").addEventListener("click", () => at("settings").showModal());
at("settings").addEventListener("close", () => {
  prompt.focus();
  if (!model.id) loadModel().catch(unreachable);
});
at("theme").addEventListener("change", (event) => {
  theme(event.target.value);
  localStorage.setItem("theme", event.target.value);
});

function unreachable(error) {
  at("empty-hint").textContent = `The server cannot be reached: ${error.message}`;
}

at("theme").value = localStorage.getItem("theme") ?? "";
theme(at("theme").value);
loadModel().catch(unreachable);
