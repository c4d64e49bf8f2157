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

/** Fetch a file and hand it to the browser to be saved. */
export async function save(path) {
  const response = await answer(`${BASE}${path}`, {});
  if (!response.ok) await refuse(response);
  const said = /filename="?([^";]+)/.exec(response.headers.get("content-disposition") ?? "");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = said?.[1] ?? "";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function request(url, options) {
  const response = await answer(url, options);
  if (response.status === 204) return null;
  if (!response.ok) await refuse(response);
  return response.json();
}

async function answer(url, options) {
  try {
    return await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      0,
      "The hub does not answer.",
      "Is `echo-hub serve` running, and this machine connected? Nothing was changed; try again.",
    );
  }
}

async function refuse(response) {
  let content = null;
  try {
    content = await response.json();
  } catch {
    content = null; // not even a problem in our form
  }
  if (response.status === 401) dispatchEvent(new CustomEvent("echo-signed-out"));
  throw new ApiError(response.status, ...reasons(response, content));
}

/** What a refusal says, and what to do about it. */
function reasons({ status, statusText }, problem) {
  const message = problem?.message ?? `The hub answered ${status} ${statusText}.`;
  if (problem?.fix) return [message, problem.fix];
  if (status === 429) return [message, "Wait a moment, then try again."];
  if (status === 403) return [message, "Reload the page and sign in again."];
  if (status >= 500) return [message, "Try again; if it stays, the hub's log says why."];
  return [message, ""];
}
