// Asking the API. Every answer is JSON; a refusal says what is wrong in `message`.

const PAGE = 1000;
const MOST_PAGES = 40;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// For a server that asks who we are; kept while this tab is open.
export const token = {
  get: () => sessionStorage.getItem("token"),
  set: (words) => sessionStorage.setItem("token", words),
};

const headers = () => (token.get() ? { authorization: `Bearer ${token.get()}` } : {});

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(`v1${path}${query ? `?${query}` : ""}`, {
      headers: headers(),
      signal: AbortSignal.timeout(15_000),
    });
  } catch {
    throw new ApiError(0, "unicrond's API does not answer");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new ApiError(response.status, body?.message ?? response.statusText);
  return body;
}

// Calls `changed` whenever the API tells of a change, until the stream ends. Not an EventSource,
// which could not say who asks.
export async function listen(changed, signal) {
  const response = await fetch("v1/events", { headers: headers(), signal });
  if (!response.ok) throw new ApiError(response.status, response.statusText);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const told = (rest + value).split("\n\n");
    rest = told.pop();
    if (told.some((event) => event.includes("event: changed"))) changed();
  }
}

// Every page of a list.
export async function all(path, parameters = {}) {
  const items = [];
  let after = "";
  for (let page = 0; page < MOST_PAGES; page++) {
    const found = await get(path, { limit: PAGE, ...parameters, ...(after && { after }) });
    items.push(...found.items);
    after = found.next;
    if (after === null) break;
  }
  return items;
}

// null where there is none (yet): nothing learned, no plan made.
export async function maybe(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}
