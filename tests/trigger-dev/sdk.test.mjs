// What the published SDK of Trigger.dev makes of a Solejob server. `scripts/test-trigger-dev` installs the SDK and starts
// the server; the server's URL and a token with all rights come in TRIGGER_API_URL and TRIGGER_SECRET_KEY.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { taskContext } from "@trigger.dev/core/v3";
import { batch, configure, idempotencyKeys, runs, tasks } from "@trigger.dev/sdk";

const url = process.env.TRIGGER_API_URL;
const secret = process.env.TRIGGER_SECRET_KEY;
assert.ok(url && secret, "scripts/test-trigger-dev sets TRIGGER_API_URL and TRIGGER_SECRET_KEY");

// A task of its own for each test, so that they never meet.
const task = () => `task-${randomUUID()}`;

async function call(method, path, body, token = secret) {
  const headers = { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(url + path, { method, headers, body: JSON.stringify(body) });
  const text = await answer.text();
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return JSON.parse(text);
}

const post = (path, body) => call("POST", path, body);

// Takes the one job of a queue that waits, as a worker does.
async function reserve(queue) {
  const { jobs } = await post("/v1/worker/reserve", { queues: [queue], worker: "sdk-test", wait: "10s" });
  assert.equal(jobs.length, 1, `a job waits in ${queue}`);
  return jobs[0];
}

async function end(queue, how, body) {
  const job = await reserve(queue);
  await post(`/v1/worker/${job.job_id}/start`, { lease_token: job.lease.token });
  await post(`/v1/worker/${job.job_id}/${how}`, { lease_token: job.lease.token, ...body });
  return job;
}

// The error that the SDK throws.
async function refused(promise, status, said) {
  const error = await promise.then(
    () => assert.fail("it was not refused"),
    (error) => error,
  );
  const cause = error.name === "BatchTriggerError" ? error.cause : error;
  assert.equal(cause.name, "TriggerApiError", String(cause.stack));
  assert.equal(cause.status, status, cause.message);
  assert.match(cause.message, said);
  return cause;
}

// Runs `body` as if it were the code of a task, whose run is a job of this server.
async function inside(run, attempt, body) {
  taskContext.setGlobalTaskContext({
    ctx: {
      run: { id: run, tags: [], isTest: false, createdAt: new Date() },
      attempt: { number: attempt, id: `${run}-${attempt}`, startedAt: new Date(), status: "EXECUTING" },
      task: { id: "parent", filePath: "parent.ts", exportName: "parent" },
      environment: { id: "env", slug: "prod", type: "PRODUCTION" },
      organization: { id: "org", slug: "org", name: "org" },
      project: { id: "project", ref: "proj_test", slug: "project", name: "project" },
      queue: { id: "queue", name: "default" },
      machine: { name: "micro", cpu: 1, memory: 1, centsPerMs: 0 },
    },
    worker: { id: "worker", contentHash: "hash", version: "1", engine: "V2" },
  });
  try {
    return await body();
  } finally {
    outside();
  }
}

// The SDK's own way out of a task keeps what it knows of the run.
const outside = () => taskContext.setGlobalTaskContext(undefined);

configure({ baseURL: url, accessToken: secret });

test("a trigger starts a run, whose payload a worker gets as JSON", async () => {
  const id = task();
  const payload = { order: 42, at: new Date("2027-01-01T00:00:00Z"), note: "é\u0001", none: null };
  const handle = await tasks.trigger(id, payload, {
    queue: id,
    tags: ["vip", "eu"],
    metadata: { customer: "7" },
    maxAttempts: 3,
    maxDuration: 90,
    priority: 5,
    machine: "small-1x",
    region: "eu-central-1",
  });
  assert.match(handle.id, /^[0-9a-f-]{36}$/);
  assert.equal(handle.isCached, false);
  const job = await call("GET", `/v1/jobs/${handle.id}`);
  assert.equal(job.name, id);
  assert.equal(job.timeout, "1m30s");
  assert.equal(job.max_attempts, 3);
  assert.equal(job.priority, 5);
  assert.deepEqual(job.metadata, { customer: "7", "tag:eu": "true", "tag:vip": "true" });
  const plain = { order: 42, at: "2027-01-01T00:00:00.000Z", note: "é\u0001", none: null };
  assert.deepEqual((await reserve(id)).payload, plain);

  const run = await runs.retrieve(handle.id);
  assert.deepEqual(run.payload, plain);
  assert.equal(run.status, "DEQUEUED");
  assert.equal(run.taskIdentifier, id);
  assert.deepEqual(run.tags, ["eu", "vip"]);
  assert.deepEqual(run.metadata, { customer: "7" });
  assert.equal(run.isExecuting, true);
  assert.equal(run.attemptCount, 1);
  assert.ok(run.createdAt instanceof Date && run.updatedAt >= run.createdAt);
  assert.equal(run.idempotencyKey, undefined, "the key of the request is no key of the user");
});

test("payloads of every kind arrive", async () => {
  const id = task();
  for (const payload of ["plain text", 7, [1, "two"], true, null, undefined, { nested: { list: [] } }]) {
    const { id: run } = await tasks.trigger(id, payload, { queue: id });
    const job = await reserve(id);
    assert.equal(job.job_id, run);
    assert.deepEqual(job.payload, payload ?? null);
  }
});

test("a run goes its way and is seen with its output or its error", async () => {
  const id = task();
  const good = await tasks.trigger(id, 1, { queue: id });
  assert.equal((await runs.retrieve(good)).status, "QUEUED");
  await end(id, "succeed", { result: { sum: 3 } });
  const done = await runs.poll(good, { pollIntervalMs: 50 });
  assert.equal(done.status, "COMPLETED");
  assert.deepEqual(done.output, { sum: 3 });
  assert.ok(done.isSuccess && done.isCompleted && done.finishedAt instanceof Date);

  const bad = await tasks.trigger(id, 1, { queue: id, maxAttempts: 1 });
  await end(id, "fail", { error: { message: "no card", type: "CardError" } });
  const failed = await runs.retrieve(bad.id);
  assert.equal(failed.status, "FAILED");
  assert.ok(failed.isFailed && failed.isCompleted);
  assert.equal(failed.error.message, "no card");
  assert.equal(failed.error.name, "CardError");

  const later = await tasks.trigger(id, 1, { delay: "1h", queue: id });
  const delayed = await runs.retrieve(later.id);
  assert.equal(delayed.status, "DELAYED");
  assert.equal(delayed.delayedUntil - delayed.createdAt, 3_600_000);
  const at = new Date(Date.now() + 86_400_000);
  const dated = await runs.retrieve((await tasks.trigger(id, 1, { delay: at, queue: id })).id);
  assert.equal(dated.delayedUntil.getTime(), at.getTime());
  await refused(runs.retrieve(randomUUID()), 404, /no such job/);
  await refused(runs.retrieve("run_of_somebody_else"), 404, /no such job/);
});

test("the same key is the same run, whatever the payload, until the run fails", async () => {
  const id = task();
  const key = await idempotencyKeys.create("order-42", { scope: "global" });
  const first = await tasks.trigger(id, { n: 1 }, { idempotencyKey: key, queue: id, maxAttempts: 1 });
  const second = await tasks.trigger(id, { n: 2 }, { idempotencyKey: key, queue: id, tags: "other" });
  assert.equal(first.isCached, false);
  assert.equal(second.isCached, true);
  assert.equal(second.id, first.id);
  const run = await runs.retrieve(first.id);
  assert.deepEqual(run.payload, { n: 1 });
  assert.equal(run.idempotencyKey, key);
  const elsewhere = await tasks.trigger(task(), { n: 1 }, { idempotencyKey: key });
  assert.equal(elsewhere.isCached, false, "a key belongs to its task");

  await end(id, "fail", { error: { message: "broken" } });
  const third = await tasks.trigger(id, { n: 3 }, { idempotencyKey: key, queue: id });
  assert.equal(third.isCached, false);
  assert.notEqual(third.id, first.id);
  await end(id, "succeed", { result: 1 });
  const fourth = await tasks.trigger(id, { n: 4 }, { idempotencyKey: key, queue: id });
  assert.deepEqual([fourth.isCached, fourth.id], [true, third.id], "a run that succeeded keeps its key");
});

test("a key is held as long as its time to live says", async () => {
  const id = task();
  const options = { idempotencyKey: await idempotencyKeys.create("short"), idempotencyKeyTTL: "1h" };
  const { id: run } = await tasks.trigger(id, 1, options);
  const job = await call("GET", `/v1/jobs/${run}`);
  const held = new Date(job.window_keys[0].expires_at) - new Date(job.dispatched_at);
  assert.equal(held, 3_600_000);
  const forMonth = { idempotencyKey: await idempotencyKeys.create("long") };
  const { window_keys, dispatched_at } = await call("GET", `/v1/jobs/${(await tasks.trigger(id, 1, forMonth)).id}`);
  assert.equal(new Date(window_keys[0].expires_at) - new Date(dispatched_at), 30 * 86_400_000);
  const soon = { ...options, idempotencyKeyTTL: "soon" };
  await refused(tasks.trigger(id, 1, soon), 400, /duration|window/i);
});

test("a key is reset once, and then it is not found", async () => {
  const id = task();
  const key = await idempotencyKeys.create(["a", "b"], { scope: "global" });
  const first = await tasks.trigger(id, 1, { idempotencyKey: key });
  assert.equal((await idempotencyKeys.reset(id, key)).id, key);
  await refused(idempotencyKeys.reset(id, key), 404, /no run of this task/);
  const second = await tasks.trigger(id, 1, { idempotencyKey: key });
  assert.notEqual(second.id, first.id);
  // By what it was made of, too.
  await idempotencyKeys.reset(id, ["a", "b"], { scope: "global" });
  assert.equal((await tasks.trigger(id, 1, { idempotencyKey: key })).isCached, false);
});

test("keys are held within a run, an attempt or everything", async () => {
  const [parent, child] = [task(), task()];
  const [one, other] = [await tasks.trigger(parent, 1), await tasks.trigger(parent, 2)];
  const trigger = (run, attempt, scope) =>
    inside(run.id, attempt, async () => {
      const key = await idempotencyKeys.create("child", scope && { scope });
      return tasks.trigger(child, { scope }, { idempotencyKey: key });
    });
  // Run, which is the default: once for both attempts.
  const first = await trigger(one, 1);
  assert.equal(first.isCached, false);
  assert.deepEqual(await trigger(one, 2, "run").then(({ id, isCached }) => [id, isCached]), [first.id, true]);
  assert.equal((await trigger(other, 1)).isCached, false);
  // Attempt: once for each.
  const [early, late] = [await trigger(one, 1, "attempt"), await trigger(one, 2, "attempt")];
  assert.deepEqual([early.isCached, late.isCached], [false, false]);
  assert.equal((await trigger(one, 2, "attempt")).id, late.id);
  // Global: once.
  const global = await trigger(one, 1, "global");
  assert.deepEqual(await trigger(other, 1, "global").then(({ id, isCached }) => [id, isCached]), [global.id, true]);

  const run = await runs.retrieve(first.id);
  assert.equal(run.relatedRuns.parent.id, one.id);
  assert.equal(run.relatedRuns.root.id, one.id);
  assert.equal(run.depth, 1);
  assert.deepEqual((await call("GET", `/v1/jobs/${first.id}`)).parent, { job_id: one.id, attempt: null });

  await idempotencyKeys.reset(child, "child", { scope: "run", parentRunId: one.id });
  await refused(idempotencyKeys.reset(child, "child", { scope: "run", parentRunId: one.id }), 404, /no run/);
  await idempotencyKeys.reset(child, "child", { scope: "attempt", parentRunId: one.id, attemptNumber: 2 });
  assert.equal((await trigger(one, 3)).isCached, false);
  assert.equal((await trigger(one, 2, "attempt")).isCached, false);
  assert.equal((await trigger(one, 1, "attempt")).isCached, true);
  await refused(
    inside(randomUUID(), 1, () => tasks.trigger(child, 1)),
    422,
    /the parent is no job/,
  );
});

test("a batch is stored whole, and again it is the same runs", async () => {
  const id = task();
  const items = [
    { payload: { n: 0 } },
    { payload: { n: 1 }, options: { tags: ["odd"], queue: "odd-ones" } },
    { payload: "two", options: { idempotencyKey: await idempotencyKeys.create("two") } },
  ];
  const handle = await tasks.batchTrigger(id, items);
  assert.equal(handle.runCount, 3);
  const listed = await runs.list({ batch: handle.batchId });
  assert.equal(listed.data.length, 3);
  const payloads = [];
  for (const { id: run } of listed.data.reverse()) payloads.push((await runs.retrieve(run)).payload);
  assert.deepEqual(payloads, [{ n: 0 }, { n: 1 }, "two"]);
  const whole = await runs.retrieve(listed.data[1].id);
  assert.deepEqual([whole.batchId, whole.triggerFunction, whole.tags], [handle.batchId, "batchTrigger", ["odd"]]);

  // Without keys it is another batch; the item with a key is the same run.
  const again = await tasks.batchTrigger(id, items);
  assert.notEqual(again.batchId, handle.batchId);
  assert.equal((await runs.list({ taskIdentifier: id })).data.length, 5);
  // With a key for the batch, nothing is started twice.
  const key = await idempotencyKeys.create("batch-1", { scope: "global" });
  const keyed = await tasks.batchTrigger(id, [{ payload: 1 }, { payload: 2 }], { idempotencyKey: key });
  const same = await tasks.batchTrigger(id, [{ payload: 1 }, { payload: 2 }], { idempotencyKey: key });
  assert.equal(same.batchId, keyed.batchId);
  assert.equal((await runs.list({ taskIdentifier: id })).data.length, 7);
});

test("batches come as streams, of many tasks, and large", async () => {
  const [one, two] = [task(), task()];
  async function* items() {
    for (let n = 0; n < 1_000; n++) yield { payload: { n, text: "x".repeat(100) } };
  }
  const handle = await tasks.batchTrigger(one, items());
  assert.equal(handle.runCount, 1_000);
  let count = 0;
  for await (const run of runs.list({ batch: handle.batchId, limit: 100 })) {
    assert.equal(run.taskIdentifier, one);
    count++;
  }
  assert.equal(count, 1_000);
  const mixed = await batch.trigger([
    { id: one, payload: 1 },
    { id: two, payload: 2 },
  ]);
  const of = (await runs.list({ batch: mixed.batchId })).data.map((run) => run.taskIdentifier);
  assert.deepEqual(of, [two, one]);
});

test("one item that is wrong, and nothing of its batch is stored", async () => {
  const id = task();
  const items = [{ payload: 1 }, { payload: 2, options: { ttl: "1h" } }];
  const error = await refused(tasks.batchTrigger(id, items), 400, /item 1: the option ttl is not supported/);
  assert.deepEqual([error.code, error.param], ["invalid_request", "/options/ttl"]);
  assert.equal((await runs.list({ taskIdentifier: id })).data.length, 0);
  await refused(tasks.batchTrigger("no task", [{ payload: 1 }]), 400, /identifier/);
  const many = Array.from({ length: 1_001 }, () => ({ payload: 1 }));
  await refused(tasks.batchTrigger(id, many), 413, /at most 1000 items/);
});

test("a stream that was cut is sent again, and each run is there once", async () => {
  const id = task();
  const real = globalThis.fetch;
  let lost = 0;
  // The server gets the items; the answer is lost on the way, once.
  globalThis.fetch = async (input, init) => {
    const answer = await real(input, init);
    const path = String(input.url ?? input);
    if (lost === 0 && (path.endsWith("/items") || path.endsWith("/trigger"))) {
      lost++;
      await answer.arrayBuffer();
      throw new TypeError("the connection was lost");
    }
    return answer;
  };
  try {
    const { batchId } = await tasks.batchTrigger(id, [{ payload: 1 }, { payload: 2 }]);
    assert.equal(lost, 1);
    assert.equal((await runs.list({ batch: batchId })).data.length, 2);
    lost = 0;
    const { isCached } = await tasks.trigger(id, 3);
    assert.equal(lost, 1);
    assert.equal(isCached, false, "it is the same request");
  } finally {
    globalThis.fetch = real;
  }
  assert.equal((await runs.list({ taskIdentifier: id })).data.length, 3);
});

test("runs are listed by what they are, page by page", async () => {
  const [id, other] = [task(), task()];
  const ids = [];
  for (let n = 0; n < 5; n++) ids.push((await tasks.trigger(id, n, { queue: id, tags: n % 2 ? "odd" : ["even", "all"] })).id);
  await tasks.trigger(other, 1, { queue: other, delay: "1h" });
  await end(id, "succeed", { result: 1 });
  const list = async (query) => (await runs.list({ limit: 100, ...query })).data.map((run) => run.id);
  assert.deepEqual(await list({ taskIdentifier: id }), ids.toReversed());
  assert.equal((await list({ taskIdentifier: [id, other] })).length, 6);
  assert.deepEqual(await list({ taskIdentifier: id, status: "COMPLETED" }), [ids[0]]);
  assert.equal((await list({ taskIdentifier: id, status: ["QUEUED", "EXECUTING"] })).length, 4);
  assert.equal((await list({ taskIdentifier: [id, other], status: "QUEUED" })).length, 4);
  assert.equal((await list({ taskIdentifier: [id, other], status: "DELAYED" })).length, 1);
  assert.equal((await list({ taskIdentifier: [id, other], status: ["DELAYED", "QUEUED"] })).length, 5);
  assert.deepEqual(await list({ taskIdentifier: id, status: ["TIMED_OUT", "EXPIRED"] }), []);
  assert.deepEqual(await list({ taskIdentifier: id, tag: "odd" }), [ids[3], ids[1]]);
  assert.deepEqual(await list({ queue: { type: "custom", name: other }, isTest: false }).then((runs) => runs.length), 1);
  assert.deepEqual(await list({ taskIdentifier: id, isTest: true }), []);
  const { createdAt } = await runs.retrieve(ids[2]);
  assert.equal((await list({ taskIdentifier: id, from: createdAt })).length >= 3, true);
  assert.deepEqual(await list({ taskIdentifier: id, to: new Date(createdAt.getTime() - 60_000) }), []);
  assert.equal((await list({ taskIdentifier: id, period: "1d" })).length, 5);

  const first = await runs.list({ taskIdentifier: id, limit: 2 });
  assert.deepEqual([first.data.length, first.hasNextPage(), first.hasPreviousPage()], [2, true, false]);
  const all = [];
  for await (const run of runs.list({ taskIdentifier: id, limit: 2 })) all.push(run.id);
  assert.deepEqual(all, ids.toReversed());
  assert.deepEqual(first.data[0].env, { id: "default", name: "prod" });

  await refused(runs.list({ tag: ["a", "b"] }), 400, /one tag/);
  await refused(runs.list({ schedule: "sched_1" }), 400, /not supported/);
  await refused(runs.list({ taskIdentifier: "no task" }), 400, /filter\[taskIdentifier\]/);
  await refused(runs.list({ limit: 1_000 }), 400, /1 to 100/);
});

test("a run is cancelled, and one that has ended is left as it is", async () => {
  const id = task();
  const waiting = await tasks.trigger(id, 1, { queue: id });
  assert.equal((await runs.cancel(waiting.id)).id, waiting.id);
  const cancelled = await runs.retrieve(waiting.id);
  assert.deepEqual([cancelled.status, cancelled.isCancelled], ["CANCELED", true]);
  await runs.cancel(waiting.id);

  const running = await tasks.trigger(id, 2, { queue: id });
  const job = await reserve(id);
  await runs.cancel(running.id);
  const beat = await post(`/v1/worker/${job.job_id}/heartbeat`, { lease_token: job.lease.token, lease: "30s" });
  assert.equal(beat.cancel_requested, true);
  await post(`/v1/worker/${job.job_id}/fail`, { lease_token: job.lease.token, error: { message: "stopped" } });
  assert.equal((await runs.retrieve(running.id)).status, "CANCELED");

  const done = await tasks.trigger(id, 3, { queue: id });
  await end(id, "succeed", { result: 1 });
  await runs.cancel(done.id);
  assert.equal((await runs.retrieve(done.id)).status, "COMPLETED");
  await refused(runs.cancel(randomUUID()), 404, /no such job/);
});

test("a replay is a new run of the same", async () => {
  const id = task();
  const key = await idempotencyKeys.create("once", { scope: "global" });
  const options = { queue: id, idempotencyKey: key, tags: ["a"], metadata: { m: "1" }, maxAttempts: 2, maxDuration: 60 };
  const first = await tasks.trigger(id, { n: 1 }, options);
  await end(id, "succeed", { result: 1 });
  const second = await runs.replay(first.id);
  assert.notEqual(second.id, first.id);
  const run = await runs.retrieve(second.id);
  assert.deepEqual([run.status, run.payload, run.tags, run.metadata], ["QUEUED", { n: 1 }, ["a"], { m: "1" }]);
  assert.equal(run.idempotencyKey, undefined);
  const job = await reserve(id);
  assert.deepEqual([job.job_id, job.max_attempts, job.timeout], [second.id, 2, "1m"]);
  assert.equal((await tasks.trigger(id, 1, { idempotencyKey: key })).id, first.id, "the key stays where it is");

  const other = await runs.replay(first.id, { payload: { n: 2 }, tags: ["b"], queue: "elsewhere", delay: "1h" });
  const changed = await runs.retrieve(other.id);
  assert.deepEqual([changed.status, changed.payload, changed.tags], ["DELAYED", { n: 2 }, ["b"]]);
  assert.deepEqual(changed.metadata, { m: "1" });
  await refused(runs.replay(first.id, { concurrencyKey: "k" }), 400, /concurrencyKey is not supported/);
  await refused(runs.replay(randomUUID()), 404, /no such job/);
});

test("what has no counterpart is refused with what to do instead", async () => {
  const id = task();
  for (const [options, said] of [
    [{ ttl: "10m" }, /ttl is not supported: .*cancel/],
    [{ concurrencyKey: "user-1" }, /concurrencyKey is not supported: .*resource/],
    [{ debounce: { key: "k", delay: "5s" } }, /debounce is not supported: .*active key/],
    [{ metadata: { deep: { a: 1 } } }, /string/],
    [{ priority: 1.5 }, /whole number/],
    [{ maxAttempts: 0 }, /max_attempts/],
    [{ delay: "next week" }, /duration/],
    [{ queue: "no queue" }, /1 to 128/],
    [{ tags: Array.from({ length: 11 }, (_, n) => `t${n}`) }, /at most 10 tags/],
  ]) {
    await refused(tasks.trigger(id, 1, options), 400, said);
  }
  // The SDK uploads large payloads before it triggers: there is nowhere to.
  await refused(tasks.trigger(id, "x".repeat(200_000)), 413, /object store/);
  assert.equal((await runs.list({ taskIdentifier: id })).data.length, 0);
});

test("a token acts for its application, and within its rights", async () => {
  const id = task();
  const { id: run } = await tasks.trigger(id, 1);
  const as = (accessToken) => ({ clientConfig: { baseURL: url, accessToken } });
  await refused(tasks.trigger(id, 1, {}, as("sole_unknown0123456789")), 401, /no such token/);
  await refused(tasks.trigger(id, 1, {}, as(process.env.READER)), 403, /right "dispatch"/);
  const elsewhere = await tasks.trigger(id, 1, {}, as(process.env.OTHER));
  assert.equal(elsewhere.isCached, false);
  configure({ baseURL: url, accessToken: process.env.OTHER });
  try {
    await refused(runs.retrieve(run), 403, /right "read"/);
  } finally {
    configure({ baseURL: url, accessToken: secret });
  }
  assert.deepEqual((await runs.list({ taskIdentifier: id })).data.map((run) => run.id), [run]);
});
