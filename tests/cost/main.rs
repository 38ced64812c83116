//! What a dispatch costs before it reaches the database, in allocations: a part of speed that does not depend on the
//! clock or the machine. A figure that goes up is a decision, to be made here in the open.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use solejob::dispatch::Parents;
use solejob::dispatch::prepare::{Request, Surroundings, prepare};
use solejob::job_types::registry::Snapshot;

#[global_allocator]
static COUNTED: dhat::Alloc = dhat::Alloc;

const TIMES: u64 = 100;

/// Blocks and bytes allocated for each time that `work` is done, once it has been done before.
fn cost<T>(mut work: impl FnMut() -> T) -> (u64, u64) {
    drop(work());
    let before = dhat::HeapStats::get();
    for _ in 0..TIMES {
        drop(std::hint::black_box(work()));
    }
    let after = dhat::HeapStats::get();
    (
        (after.total_blocks - before.total_blocks) / TIMES,
        (after.total_bytes - before.total_bytes) / TIMES,
    )
}

#[test]
fn what_a_dispatch_allocates_before_it_is_stored() {
    let _profiler = dhat::Profiler::builder().testing().build();

    let payload = format!(r#"{{"order": 42, "note": "{}"}}"#, "x".repeat(200));
    let body = format!(
        r#"{{"name": "place-order", "payload": {payload}, "uniqueness": {{"active_key": "order:42", "window_key": "req-1"}}}}"#
    );
    let checked = cost(|| {
        solejob::json::check(body.as_bytes(), solejob::json::MAX_DEPTH)
            .map(str::len)
            .is_ok()
    });

    let request = |text: &str| {
        let mut request = Request {
            name: "place-order".into(),
            payload: Some(Arc::from(text)),
            active_key: Some("order:42".into()),
            ..Request::default()
        };
        request.window.window_key = Some("req-1".into());
        request.window.window = Some("24h".into());
        request
    };
    let (parents, types) = (Parents::default(), Snapshot::default());
    let surroundings = Surroundings {
        payload_bytes_max: 1 << 20,
        now: DateTime::<Utc>::from_timestamp(1_800_000_000, 0).expect("a time"),
        parents: &parents,
        types: &types,
    };
    let small = request(&payload);
    let prepared = cost(|| prepare(&small, &surroundings).expect("it is valid"));
    let text = format!(r#"{{"text": "{}"}}"#, "x".repeat(500_000));
    let large = request(&text);
    let prepared_large = cost(|| prepare(&large, &surroundings).expect("it is valid"));

    println!("checked {checked:?}, prepared {prepared:?}, prepared large {prepared_large:?}: blocks and bytes");
    assert!(checked.0 <= 4, "checking a body allocates {checked:?}");
    assert!(prepared.0 <= 24, "preparing a dispatch allocates {prepared:?}");
    assert!(prepared.1 <= 3_000, "preparing a dispatch allocates {prepared:?}");
    // A payload is written out once, in its canonical form, and not taken apart into values.
    assert!(prepared_large.0 <= prepared.0, "blocks grow with the payload");
    assert!(
        prepared_large.1 <= prepared.1 + text.len() as u64 * 9 / 8 + 1_000,
        "{prepared_large:?}"
    );
}
