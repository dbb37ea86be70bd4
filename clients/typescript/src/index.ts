/**
 * Client of Rota's API: an openapi-fetch client of all routes below /api/v1, with a key, retries, typed errors, pages
 * and event streams.
 *
 *     const rota = connect({ server: "http://127.0.0.1:8420", key });
 *     const { data } = await rota.POST("/api/v1/schedules/{key}/$run", { params: { path: { key: "nightly" } }, body: {} });
 */
import createClient, { type Client, type Middleware } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, paths } from "./schema.js";
export type Schemas = components["schemas"];
export type Problem = Schemas["Problem"];
export type Rota = Client<paths>;

export interface Options {
  /** URL of the server; default: ROTA_SERVER, else http://127.0.0.1:8420 */
  server?: string;
  /** API key; default: ROTA_KEY */
  key?: string;
  /** attempts of a call that may be repeated: GET, HEAD, PUT, and POST, which has an Idempotency-Key */
  tries?: number;
  fetch?: typeof globalThis.fetch;
}

/** The server refused a request. `code` is stable; `problem` is the whole problem document, if the server sent one. */
export class ApiError extends Error {
  readonly code: string;

  constructor(
    readonly status: number,
    readonly problem: Partial<Problem>,
  ) {
    super(problem.detail ?? `HTTP ${status}`);
    this.name = "ApiError";
    this.code = problem.code ?? "unknown";
  }
}

const RETRIED_STATUSES = [429, 502, 503, 504];
const RETRIED_METHODS = ["GET", "HEAD", "PUT", "POST"];
const MAX_RETRY_AFTER_SECONDS = 30;
const RECONNECT_MS = 2000;

/** Return a client. Its calls throw ApiError for refusals; `data` of their result is then always there. */
export function connect(options: Options = {}): Rota {
  const { server, key } = address(options);
  const rota = createClient<paths>({ baseUrl: server, fetch: retrying(options) });
  const middleware: Middleware = {
    onRequest({ request }) {
      if (key) request.headers.set("authorization", `Bearer ${key}`);
      if (request.method === "POST" && !request.headers.has("idempotency-key"))
        request.headers.set("idempotency-key", crypto.randomUUID());
    },
    async onResponse({ response }) {
      if (!response.ok) throw await errorOf(response);
    },
  };
  rota.use(middleware);
  return rota;
}

type Paged = { items: unknown[]; next_cursor?: string | null };
type AnswerOf<P extends keyof paths> = paths[P] extends {
  get: { responses: { 200: { content: { "application/json": infer Answer } } } };
}
  ? Answer
  : never;
/** The paths whose GET returns pages. */
export type PagedPath = {
  [P in keyof paths]: [AnswerOf<P>] extends [never] ? never : AnswerOf<P> extends Paged ? P : never;
}[keyof paths];
export type ItemOf<P extends PagedPath> = AnswerOf<P> extends { items: (infer Item)[] } ? Item : never;
export type ParametersOf<P extends PagedPath> = paths[P] extends { get: { parameters: infer Parameters } }
  ? { [Part in keyof Parameters as Part extends "path" | "query" ? Part : never]: Parameters[Part] }
  : never;

/** Iterate over all items of a list; fetches page by page. */
export async function* items<P extends PagedPath>(
  rota: Rota,
  path: P,
  params: Partial<ParametersOf<P>> = {},
): AsyncGenerator<ItemOf<P>> {
  let cursor: string | null | undefined;
  do {
    const { query, ...rest } = params as { query?: Record<string, unknown> };
    const request = { params: { ...rest, query: cursor == null ? query : { ...query, cursor } } };
    const get = rota.GET as unknown as (path: P, request: object) => Promise<{ data: Paged }>;
    const { data } = await get(path, request);
    yield* data.items as ItemOf<P>[];
    cursor = data.next_cursor;
  } while (cursor != null);
}

/** Poll until a job has ended and return it. Throws after `seconds`. */
export async function wait(rota: Rota, jobId: string, seconds = 3600): Promise<Schemas["Job"]> {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const { data: job } = await rota.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: jobId } } });
    if (job === undefined) throw new Error(`job ${jobId}: empty answer`);
    if (job.status !== "pending" && job.status !== "running" && job.waiting == null) return job; // it may sleep in its run
    if (Date.now() > deadline) throw new Error(`job ${jobId} is still ${job.status} after ${seconds} s`);
    await sleep(500);
  }
}

export interface StreamEvent {
  id: string;
  type: string;
  data: unknown;
}

export interface StreamOptions extends Options {
  /** id of the last event that was read: the stream continues there */
  lastEventId?: string;
  signal?: AbortSignal;
}

/**
 * Read an event stream: `/api/v1/events`, `/api/v1/jobs/{id}/$stream` or `/api/v1/runs/{id}/logs`. `/events` has no end:
 * the client reconnects and continues after the last event; the others end with their job or run. Throws ApiError.
 */
export async function* events(path: string, options: StreamOptions = {}): AsyncGenerator<StreamEvent> {
  const { server, key } = address(options);
  const fetch = options.fetch ?? globalThis.fetch;
  const endless = path.split("?")[0]?.endsWith("/events") ?? false;
  let last = options.lastEventId;
  for (;;) {
    try {
      const response = await fetch(new URL(path, server), {
        headers: {
          accept: "text/event-stream",
          ...(key ? { authorization: `Bearer ${key}` } : {}),
          ...(last ? { "last-event-id": last } : {}),
        },
        signal: options.signal ?? null,
      });
      if (!response.ok) throw await errorOf(response);
      for await (const event of parse(response)) {
        last = event.id || last;
        yield event;
      }
      if (!endless) return;
    } catch (error) {
      if (options.signal?.aborted) return;
      const mayReturn = !(error instanceof ApiError) || RETRIED_STATUSES.includes(error.status);
      if (!mayReturn) throw error;
    }
    await sleep(RECONNECT_MS);
  }
}

async function* parse(response: Response): AsyncGenerator<StreamEvent> {
  let buffer = "";
  const decoder = new TextDecoder();
  for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
    buffer += decoder.decode(chunk, { stream: true });
    const frames = buffer.split("\n\n");
    buffer = frames.pop() ?? "";
    for (const frame of frames) {
      const fields = new Map(frame.split("\n").map((line) => split(line)));
      const data = fields.get("data");
      if (data !== undefined)
        yield { id: fields.get("id") ?? "", type: fields.get("event") ?? "message", data: JSON.parse(data) };
    }
  }
}

function split(line: string): [string, string] {
  const colon = line.indexOf(": ");
  return colon < 0 ? [line, ""] : [line.slice(0, colon), line.slice(colon + 2)];
}

function address(options: Options): { server: string; key: string } {
  const env = typeof process === "undefined" ? {} : process.env;
  return {
    server: options.server ?? env["ROTA_SERVER"] ?? "http://127.0.0.1:8420",
    key: options.key ?? env["ROTA_KEY"] ?? "",
  };
}

function retrying(options: Options): (request: Request) => Promise<Response> {
  const fetch = options.fetch ?? globalThis.fetch;
  const tries = options.tries ?? 4;
  return async (request) => {
    for (let attempt = 1; ; attempt++) {
      const last = attempt >= tries || !RETRIED_METHODS.includes(request.method);
      try {
        const response = await fetch(request.clone());
        const seconds = delay(response, attempt);
        if (last || seconds === null) return response;
        await sleep(seconds * 1000);
      } catch (error) {
        if (last) throw error;
        await sleep(backoff(attempt) * 1000);
      }
    }
  };
}

/** Seconds until the next attempt; null if the answer is final. */
function delay(response: Response, attempt: number): number | null {
  if (!RETRIED_STATUSES.includes(response.status)) return null;
  const after = response.headers.get("retry-after") ?? "";
  if (!/^\d+$/.test(after)) return backoff(attempt);
  return Number(after) <= MAX_RETRY_AFTER_SECONDS ? Number(after) : null;
}

function backoff(attempt: number): number {
  return Math.min(0.1 * 2 ** attempt, 5) * (0.5 + Math.random() / 2);
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const document: unknown = JSON.parse(text);
    if (typeof document === "object" && document !== null && "detail" in document)
      return new ApiError(response.status, document as Partial<Problem>);
  } catch {
    // not a problem document
  }
  return new ApiError(response.status, { detail: `HTTP ${response.status} from ${response.url}: is this a Rota server?` });
}

function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
