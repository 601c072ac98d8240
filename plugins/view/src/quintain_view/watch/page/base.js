// Every text of a model, a task or a tool becomes a text node; nothing is parsed as HTML.
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(4).filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

const by = id => document.getElementById(id);
const number = (value, digits = 4) => value === null || value === undefined ? "" : String(Number(value.toPrecision(digits)));
const count = value => Math.round(value).toLocaleString("en");
const text = value => typeof value === "string" ? value : JSON.stringify(value);
const short = name => String(name).split(":").pop().split("/").pop();

function seconds(value) {
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 600) return `${value.toFixed(0)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round(value % 3600 / 60)} min`;
}

// ------------------------------------------------------------------ what the server says
const token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("token") || "";
if (token) sessionStorage.setItem("token", token);
history.replaceState(null, "", location.pathname);

async function ask(path, order) {
  const headers = {Authorization: `Bearer ${token}`};
  const sent = order ? {method: "POST", headers: {...headers, "Content-Type": "application/json"}, body: JSON.stringify(order)} : {headers};
  const answer = await fetch(`/api/${path}`, sent);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function said(message, bad = false) {
  by("status").textContent = message;
  by("status").classList.toggle("bad", bad);
}

const named = name => `runs/${encodeURIComponent(name)}`;
