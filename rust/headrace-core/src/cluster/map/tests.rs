#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use redis::Value;

use super::*;

fn node(port: u16) -> Node {
    Node { host: "db".to_owned(), port }
}

/// A reply to CLUSTER SLOTS: ranges with their master and its replicas, by their ports.
fn slots(ranges: &[(RangeInclusive<u16>, &[u16])]) -> Slots {
    let node = |port: &u16| Value::Array(vec![Value::BulkString(b"db".to_vec()), Value::Int((*port).into())]);
    let row = |(slots, ports): &(RangeInclusive<u16>, &[u16])| {
        let ends = [slots.start(), slots.end()].map(|slot| Value::Int((*slot).into()));
        Value::Array(ends.into_iter().chain(ports.iter().map(node)).collect())
    };
    Slots::read(&Value::Array(ranges.iter().map(row).collect())).unwrap()
}

fn learn(map: &mut ClusterMap, ranges: &[(RangeInclusive<u16>, &[u16])]) -> Vec<Moved> {
    map.learn(&slots(ranges), &node(1)).unwrap()
}

fn moved(slots: u64, from: u16, to: u16, is_failover: bool) -> Moved {
    Moved { slots, from: node(from), to: node(to), is_failover }
}

fn redirected(map: &mut ClusterMap, line: &str, sender: u16) -> Redirected {
    let redirect = Redirect::read(line.as_bytes());
    let slot = redirect.as_ref().map_or(5, |redirect| redirect.slot);
    map.redirected(slot, redirect.as_ref(), &node(sender))
}

fn ports(nodes: &[Node]) -> Vec<u16> {
    nodes.iter().map(|node| node.port).collect()
}

/// Nodes 1 and 2 have half of the slots each; 3 and 4 are their replicas.
fn half_each() -> ClusterMap {
    let mut map = ClusterMap::default();
    assert_eq!(learn(&mut map, &[(0..=8_191, &[1, 3]), (8_192..=16_383, &[2, 4])]), []);
    map
}

#[test]
fn owners_are_those_of_the_last_report() {
    let mut map = ClusterMap::default();
    assert_eq!((map.owner(0), map.owned(), map.candidates(vec![node(7)])), (None, vec![], vec![node(7)]));
    learn(&mut map, &[(0..=9, &[1]), (20..=29, &[2, 3]), (10..=14, &[1]), (25..=25, &[1])]);
    let owner = |slot| map.owner(slot).map(|node| node.port);
    assert_eq!([0, 14, 15, 20, 25, 26, 30].map(owner), [Some(1), Some(1), None, Some(2), Some(1), Some(2), None]);
    let ranges = [(0..=14, 1), (20..=24, 2), (25..=25, 1), (26..=29, 2)];
    assert_eq!(map.owned(), ranges.map(|(slots, port)| (slots, node(port))));
    assert_eq!(map.replicas(), [(node(3), node(2))]);
    assert_eq!([1, 2, 3, 9].map(|port| map.replicas_of(&node(port))), [Some(0), Some(1), None, None]);
    assert_eq!(ports(&map.candidates(vec![node(7), node(2)])), [1, 2, 3, 7], "masters, replicas, seeds");
}

#[test]
fn a_lost_node_has_no_slots_and_is_asked_last_until_the_next_report() {
    let mut map = half_each();
    map.lost(&node(1));
    assert_eq!((map.owner(5), map.owner(9_000)), (None, Some(&node(2))), "only its own slots are in doubt");
    assert_eq!(ports(&map.candidates(vec![])), [2, 3, 4, 1]);
    map.lost(&node(2));
    map.lost(&node(2));
    assert_eq!(ports(&map.candidates(vec![])), [3, 4, 1, 2]);
    let before = map.clone();
    assert!(matches!(redirected(&mut map, "MOVED 5 db:2", 1), Redirected::Goes(to) if to == node(2)));
    assert_eq!(ports(&map.candidates(vec![])), [1, 3, 4, 2], "a node that redirects is not lost");
    map = before;
    learn(&mut map, &[(0..=8_191, &[3]), (8_192..=16_383, &[2, 4])]);
    assert_eq!((map.owner(5), map.owner(9_000)), (Some(&node(3)), Some(&node(2))));
    assert_eq!(ports(&map.candidates(vec![])), [3, 2, 4]);
}

#[test]
fn redirects_lead_only_to_listed_nodes() {
    let mut map = half_each();
    assert_eq!(redirected(&mut map, "ASK 5 db:2", 1), Redirected::Asks(node(2)));
    assert_eq!(map.owner(5), Some(&node(1)));
    assert_eq!(redirected(&mut map, "MOVED 5 :2", 1), Redirected::Goes(node(2)));
    assert_eq!((map.owner(5), map.owner(6)), (Some(&node(2)), Some(&node(1))));
    for line in ["MOVED 6 db:9", "MOVED 6 ?:2", "ASK 6 db:9"] {
        assert_eq!(redirected(&mut map, line, 2), Redirected::Unknown, "{line}");
        assert_eq!((map.owner(6), map.owner(7)), (None, Some(&node(1))), "{line}");
        assert_eq!(ports(&map.candidates(vec![node(7)])), [2, 1, 3, 4, 7], "{line}: the sender knows more");
    }
    assert_eq!(redirected(&mut map, "MOVED", 1), Redirected::Unknown, "it cannot be read");
    assert_eq!(map.owner(5), None);
    learn(&mut map, &[(0..=8_191, &[1, 3]), (8_192..=16_383, &[2, 4])]);
    assert_eq!((map.owner(6), ports(&map.candidates(vec![]))), (Some(&node(1)), vec![1, 2, 3, 4]));
}

#[test]
fn a_node_is_listed_if_the_sender_of_a_redirect_knows_it() {
    let mut map = half_each();
    let members = Members::read(b"a db:9@19 master - 0 0 1 connected\n");
    let redirect = |line: &[u8]| Redirect::read(line).unwrap();
    map.confirm(&redirect(b"ASK 5 db:8"), &node(1), &members);
    map.confirm(&redirect(b"ASK 5 db:9"), &node(1), &members);
    assert_eq!(map.target(&redirect(b"ASK 5 db:8"), &node(1)), None);
    assert_eq!(map.target(&redirect(b"ASK 5 db:9"), &node(1)), Some(node(9)));
    assert_eq!(map.moved_to(5, &node(9)), Some(moved(1, 1, 9, false)));
    assert_eq!(map.owner(5), Some(&node(9)));
}

#[test]
fn slots_that_moved_are_counted_for_each_pair_of_nodes() {
    let mut map = half_each();
    let ranges: [(_, &[u16]); 3] = [(0..=8_000, &[1]), (8_001..=16_000, &[2]), (16_001..=16_383, &[5])];
    assert_eq!(learn(&mut map, &ranges), [moved(191, 1, 2, false), moved(383, 2, 5, false)]);
    assert_eq!(learn(&mut map, &ranges), []);
}

#[test]
fn a_replica_that_takes_over_is_a_failover() {
    let mut map = half_each();
    // Until then, no node has these slots.
    assert_eq!(learn(&mut map, &[(8_192..=16_383, &[2, 4])]), []);
    assert_eq!(map.owner(0), None);
    let mut map = half_each();
    assert_eq!(learn(&mut map, &[(0..=8_191, &[3, 1]), (8_192..=16_383, &[2])]), [moved(8_192, 1, 3, true)]);
    assert_eq!(learn(&mut map, &[(0..=8_191, &[1]), (8_192..=16_383, &[2])]), [moved(8_192, 3, 1, true)], "back");
}

#[test]
fn slots_without_a_node_count_as_those_of_their_last_one() {
    let mut map = half_each();
    assert_eq!(learn(&mut map, &[(8_192..=16_383, &[2])]), []);
    assert_eq!(learn(&mut map, &[(8_192..=16_383, &[2])]), []);
    assert_eq!(learn(&mut map, &[(0..=8_191, &[5]), (8_192..=16_383, &[2])]), [moved(8_192, 1, 5, false)]);
}

#[test]
fn a_node_that_follows_the_new_owner_of_its_slots_was_replaced() {
    let mut map = half_each();
    assert_eq!(learn(&mut map, &[(0..=8_191, &[7, 1]), (8_192..=16_383, &[2])]), [moved(8_192, 1, 7, true)]);
    // A master that gave its slots away, and follows the node that has the last of them.
    assert_eq!(learn(&mut map, &[(0..=16_383, &[2, 7])]), [moved(8_192, 7, 2, false)]);
}

#[test]
fn a_redirect_to_a_replica_moves_all_slots_of_its_master() {
    let mut map = half_each();
    assert_eq!(map.moved_to(5, &node(1)), None);
    assert_eq!(map.moved_to(5, &node(2)), Some(moved(1, 1, 2, false)));
    map.lost(&node(1));
    assert_eq!(map.moved_to(6, &node(3)), Some(moved(8_191, 1, 3, true)));
    assert_eq!(map.moved_to(7, &node(3)), None);
    assert_eq!((map.owner(5), map.owner(8_000)), (Some(&node(2)), Some(&node(3))));
    let ranges: [(_, &[u16]); 4] = [(0..=4, &[3]), (5..=5, &[2]), (6..=8_191, &[3]), (8_192..=16_383, &[2])];
    assert_eq!(learn(&mut map, &ranges), []);
}

#[test]
fn a_redirect_before_any_owner_is_known_is_not_a_move() {
    let mut map = ClusterMap::default();
    assert_eq!(map.moved_to(5, &node(1)), None);
    assert_eq!(redirected(&mut map, "MOVED 5 db:2", 1), Redirected::Unknown);
}

#[test]
fn reports_with_too_many_nodes_change_nothing() {
    let mut map = half_each();
    let ports: Vec<u16> = (1..=u16::try_from(MAX_NODES + 1).unwrap()).collect();
    assert_eq!(map.learn(&slots(&[(0..=16_383, &ports)]), &node(1)), Err(TooManyNodes));
    assert_eq!(map.owner(16_383), Some(&node(2)));
}

#[test]
fn former_nodes_are_forgotten() {
    let mut map = ClusterMap::default();
    for port in 1..100 {
        learn(&mut map, &[(0..=9, &[port, port + 2_000]), (10..=19, &[port + 1])]);
        learn(&mut map, &[(10..=19, &[port + 1])]);
        assert!(map.nodes.len() < 6);
    }
}

/// An event that changes a map. Slots 0 to 3 stand for all others.
#[derive(Debug, Clone)]
enum Event {
    /// A report of the owners of the slots. 0: no node has it.
    Learn([u16; 4]),
    Redirect {
        slot: u16,
        is_ask: bool,
        to: u16,
        sender: u16,
    },
    Lost(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        prop::array::uniform4(0..6_u16).prop_map(Event::Learn),
        (0..4_u16, any::<bool>(), 1..8_u16, 1..6_u16).prop_map(|(slot, is_ask, to, sender)| Event::Redirect {
            slot,
            is_ask,
            to,
            sender
        }),
        (1..6_u16).prop_map(Event::Lost),
    ]
}

proptest! {
    #[test]
    fn owners_and_candidates_match_a_simple_model(events in prop::collection::vec(event(), 0..40)) {
        let mut map = ClusterMap::default();
        let (mut owners, mut last) = (BTreeMap::new(), BTreeMap::new());
        let (mut listed, mut lost, mut sender): (Vec<u16>, Vec<u16>, Option<u16>) = Default::default();
        for event in events {
            match event {
                Event::Learn(ports) => {
                    let ranges: Vec<_> =
                        (0..4).zip(ports).filter(|(_, port)| *port > 0).map(|(slot, port)| (slot..=slot, [port])).collect();
                    let ranges: Vec<_> = ranges.iter().map(|(slots, ports)| (slots.clone(), &ports[..])).collect();
                    let moved = learn(&mut map, &ranges);
                    owners = (0..4).zip(ports).filter(|(_, port)| *port > 0).collect();
                    let expected = owners.iter().filter(|(slot, port)| last.get(*slot).is_some_and(|from| from != *port));
                    prop_assert_eq!(moved.iter().map(|moved| moved.slots).sum::<u64>(), expected.count() as u64);
                    last.extend(owners.clone());
                    (listed, lost, sender) = (owners.values().copied().collect(), vec![], None);
                }
                Event::Redirect { slot, is_ask, to, sender: from } => {
                    let line = format!("{} {slot} db:{to}", if is_ask { "ASK" } else { "MOVED" });
                    let goes = redirected(&mut map, &line, from);
                    lost.retain(|lost| *lost != from);
                    if !listed.contains(&to) {
                        prop_assert_eq!(goes, Redirected::Unknown);
                        owners.remove(&slot);
                        sender = Some(from);
                    } else if is_ask {
                        prop_assert_eq!(goes, Redirected::Asks(node(to)));
                    } else {
                        prop_assert_eq!(goes, Redirected::Goes(node(to)));
                        owners.insert(slot, to);
                        last.insert(slot, to);
                    }
                }
                Event::Lost(port) => {
                    map.lost(&node(port));
                    lost.push(port);
                }
            }
            for slot in 0..4 {
                let expected = owners.get(&slot).filter(|port| !lost.contains(port)).copied();
                prop_assert_eq!(map.owner(slot).map(|node| node.port), expected);
            }
            let asked = ports(&map.candidates((1..7).map(node).collect()));
            prop_assert_eq!(asked.len(), 6, "each of them once");
            prop_assert!(asked.is_sorted_by_key(|port| (lost.contains(port), Some(*port) != sender)));
        }
    }
}
