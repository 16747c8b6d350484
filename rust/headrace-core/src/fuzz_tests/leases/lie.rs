//! Deliberate defects of the server, of what a member knows and of what it reports: each must be found.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    // The server.
    /// It lets a lease be taken that is not over.
    Steal,
    /// It lets an owner commit that another one has followed.
    KeepOld,
    /// It does not renew, and says that it did.
    RenewNothing,
    /// It does not store a position, and says that it did.
    CommitNothing,
    /// It stores a position, and says that the lease is another one.
    DenyCommit,
    /// It stores the position of a command that comes late.
    MoveBack,
    /// The epoch does not grow.
    RepeatEpoch,
    /// It does not end a lease, and says that it did.
    ReleaseNothing,
    /// It takes a member out of the list that is there.
    ForgetMember,
    /// It keeps members in the list that are not there.
    KeepMember,
    /// It lists a member twice.
    RepeatMember,
    /// It says that the group is one entry further than it is.
    StartLater,
    /// It says that the group is one entry less far than it is.
    StartEarlier,
    /// It moves an entry that it has moved before.
    MoveTwice,
    /// It does not move an entry, and says that it did.
    LoseLetter,
    /// It lets another member take what is pinned.
    IgnorePin,
    // What a member knows.
    CheckYes,
    HandOutLate,
    SkipBatch,
    RepeatBatch,
    SettledEarly,
    LeftNothing,
    CommitMore,
    // What it reports.
    CommittedTooMany,
    CommittedTooFew,
    FencedTooMany,
    UnknownTooMany,
    StillPending,
    HandedTooFew,
    TakenTooMany,
    RepeatedTooMany,
    DeadTooFew,
}

impl Lie {
    #[cfg(test)]
    pub const ALL: [Self; 32] = [
        Self::Steal,
        Self::KeepOld,
        Self::RenewNothing,
        Self::CommitNothing,
        Self::DenyCommit,
        Self::MoveBack,
        Self::RepeatEpoch,
        Self::ReleaseNothing,
        Self::ForgetMember,
        Self::KeepMember,
        Self::RepeatMember,
        Self::StartLater,
        Self::StartEarlier,
        Self::MoveTwice,
        Self::LoseLetter,
        Self::IgnorePin,
        Self::CheckYes,
        Self::HandOutLate,
        Self::SkipBatch,
        Self::RepeatBatch,
        Self::SettledEarly,
        Self::LeftNothing,
        Self::CommitMore,
        Self::CommittedTooMany,
        Self::CommittedTooFew,
        Self::FencedTooMany,
        Self::UnknownTooMany,
        Self::StillPending,
        Self::HandedTooFew,
        Self::TakenTooMany,
        Self::RepeatedTooMany,
        Self::DeadTooFew,
    ];

    /// Those that take seconds to find: only the larger size of the tests tells them.
    #[cfg(test)]
    pub const LONG_TO_FIND: [Self; 6] =
        [Self::MoveBack, Self::MoveTwice, Self::LoseLetter, Self::CheckYes, Self::SettledEarly, Self::DeadTooFew];
}
