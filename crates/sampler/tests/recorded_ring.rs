//! Bytes that a kernel wrote (Linux 6.18, `examples/record_ring`): 40 page
//! faults on consecutive pages, in records that wrap around the ring's end.

use terrace_sampler::perf::record::{Record, parse};

#[test]
fn a_recorded_ring_is_read_across_its_end() {
    let bytes = include_bytes!("data/page-faults.ring");
    let words: Vec<u64> =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let [tail, head, fields, ring @ ..] = words.as_slice() else { panic!("too short") };
    assert!(tail / 4096 < head / 4096, "the recording wraps: {tail} to {head}");

    let mut addresses = Vec::new();
    let read = parse(
        |i| ring[i],
        ring.len(),
        *tail,
        *head,
        *fields,
        |record| match record {
            Record::Sample(sample) => addresses.push(sample.address),
            other => panic!("{other:?} was not written"),
        },
    );

    assert_eq!(read, Ok(()));
    let consecutive = addresses.windows(2).filter(|pair| pair[0] + 4096 == pair[1]).count();
    assert!(consecutive >= 39, "{consecutive} of {}: {addresses:x?}", addresses.len());
}
