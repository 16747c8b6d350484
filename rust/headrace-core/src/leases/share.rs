//! The share of a member: how many streams it may own.

/// The share of the member `me` of `streams` streams. `members`: all of them, ascending. A member that is not among them has none.
///
/// Shares differ by one at most, and the first members have the greater ones. When a member joins or leaves, the share of at most
/// one other member changes against its direction: nothing moves but what the newcomer gets or the leaver had, and one stream.
pub(super) fn share(streams: usize, members: &[Vec<u8>], me: &[u8]) -> usize {
    let Ok(rank) = members.binary_search_by(|member| member.as_slice().cmp(me)) else { return 0 };
    streams / members.len() + usize::from(rank < streams % members.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(streams: usize, members: &[Vec<u8>]) -> Vec<usize> {
        members.iter().map(|member| share(streams, members, member)).collect()
    }

    #[test]
    fn shares_add_up_and_differ_by_one_at_most() {
        for streams in 0..40 {
            for count in 1..=20_u8 {
                let members: Vec<_> = (0..count).map(|name| vec![name]).collect();
                let all = shares(streams, &members);
                assert_eq!(all.iter().sum::<usize>(), streams);
                assert!(
                    all.iter().max().copied().unwrap_or_default() - all.iter().min().copied().unwrap_or_default() <= 1
                );
            }
        }
        assert_eq!(share(12, &[], b"a"), 0);
        assert_eq!(share(12, &[b"b".to_vec()], b"a"), 0);
    }

    #[test]
    fn a_newcomer_takes_what_it_gets_and_moves_nothing_else() {
        for streams in 0..60_usize {
            for count in 1..=20_u8 {
                let before: Vec<_> = (0..count).map(|name| vec![2 * name + 1]).collect();
                for name in (0..=2 * count).step_by(2) {
                    let mut after = before.clone();
                    after.push(vec![name]);
                    after.sort();
                    let change =
                        |member: &Vec<u8>| share(streams, &after, member).abs_diff(share(streams, &before, member));
                    let moved: usize = before.iter().map(change).sum();
                    let own = share(streams, &after, &[name]);
                    assert!(moved <= own + 2, "{streams} streams, {count} members and {name}: {moved}, {own}");
                }
            }
        }
    }
}
