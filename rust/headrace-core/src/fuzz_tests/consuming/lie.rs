//! Deliberate defects of the server and of what a consumer returns and reports: each must be found.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    // The server.
    /// It acknowledges one entry more than the script names.
    AckMore,
    /// It does not acknowledge, and says that it did.
    AckNothing,
    /// It acknowledges, and says that another consumer has the entry.
    DenyAck,
    /// It lets entries be claimed that are not idle for long enough.
    ClaimEarly,
    /// It does not renew, and says that it did.
    RenewNothing,
    /// Its counter of deliveries rises by two.
    CountTwice,
    /// It acknowledges a dead letter without adding it.
    LoseLetter,
    /// It adds a dead letter twice.
    RepeatLetter,
    /// It sends the fields of another entry.
    WrongFields,
    /// It delivers an entry that was acknowledged.
    Revive,
    // What is returned and reported.
    SkipBatch,
    RepeatBatch,
    SkipRow,
    SwallowError,
    CheckYes,
    AckedTooMany,
    AckedTooFew,
    LostTooMany,
    DeadTooFew,
    StaleTooMany,
    StillPending,
    WaitLonger,
}

impl Lie {
    #[cfg(test)]
    pub const ALL: [Self; 22] = [
        Self::AckMore,
        Self::AckNothing,
        Self::DenyAck,
        Self::ClaimEarly,
        Self::RenewNothing,
        Self::CountTwice,
        Self::LoseLetter,
        Self::RepeatLetter,
        Self::WrongFields,
        Self::Revive,
        Self::SkipBatch,
        Self::RepeatBatch,
        Self::SkipRow,
        Self::SwallowError,
        Self::CheckYes,
        Self::AckedTooMany,
        Self::AckedTooFew,
        Self::LostTooMany,
        Self::DeadTooFew,
        Self::StaleTooMany,
        Self::StillPending,
        Self::WaitLonger,
    ];

    /// Those that take seconds to find: only the larger size of the tests tells them.
    #[cfg(test)]
    pub const LONG_TO_FIND: [Self; 7] = [
        Self::RenewNothing,
        Self::LoseLetter,
        Self::RepeatLetter,
        Self::SkipBatch,
        Self::SkipRow,
        Self::SwallowError,
        Self::DeadTooFew,
    ];
}
