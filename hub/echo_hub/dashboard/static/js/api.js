/** Requests to the hub. Every failure is an ApiError that says what happened and what to do. */

const BASE = "/api/v1";
let csrf = null;

export class ApiError extends Error {
  constructor(status, message, fix) {
    super(message);
    this.status = status;
    this.fix = fix;
  }
}

/** What the hub said of this session; its `csrf` goes with every later change. */
export function useSession(session) {
  csrf = session.csrf ?? null;
}

/** GET a path with query parameters; null and "" are left out, a list is several. */
export async function get(path, query = {}, { signal } = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") asked.append(name, one);
    }
  }
  const tail = asked.size ? `?${asked}` : "";
  return request(`${BASE}${path}${tail}`, { signal });
}

/** Change something. */
export async function send(method, path, body = undefined, { signal } = {}) {
  const headers = { "X-Echo-Hub": "dashboard" };
  if (csrf) headers["X-CSRF-Token"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return request(`${BASE}${path}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
  });
}

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      0,
      "The hub does not answer.",
      "Is `echo-hub serve` running, and this machine connected? Nothing was changed; try again.",
    );
  }
  if (response.status === 204) return null;
  const text = await response.text();
  let content = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    content = null;
  }
  if (response.ok) return content;
  if (response.status === 401) window.dispatchEvent(new CustomEvent("echo-signed-out"));
  throw new ApiError(response.status, ...reasons(response, content));
}

function reasons(response, content) {
  const said = content?.error ?? content?.message ?? content?.detail;
  const known = typeof said === "string" ? said : said?.message;
  const message = known ?? `The hub answered ${response.status} ${response.statusText}.`;
  const fix = content?.fix ?? said?.fix ?? null;
  if (fix) return [message, fix];
  if (response.status === 429) return [message, "Wait a moment, then try again."];
  if (response.status === 403) return [message, "Reload the page and sign in again."];
  if (response.status >= 500) return [message, "Look at the hub's log; this is its fault."];
  return [message, ""];
}
