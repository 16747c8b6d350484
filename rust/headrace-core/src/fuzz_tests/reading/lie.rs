//! Deliberate defects of the server and of what a session returns: each must be found.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    // The server.
    /// An entry is missing in the middle of a page.
    DropEntry,
    /// An entry is twice in a page.
    RepeatEntry,
    /// The last entry of a page is missing.
    CutPage,
    AddedTooFew,
    AddedTooMany,
    NothingDeleted,
    OldLastId,
    LateFirst,
    // What is returned.
    SkipBatch,
    RepeatBatch,
    SkipRow,
    LostTooFew,
    LostTooMany,
    SwallowLoss,
    CallItExact,
    CallItBound,
    LowBound,
    InventLoss,
    InventReplacement,
    HideReplacement,
    RefuseAgain,
    PositionAhead,
    PositionBehind,
    HideDoubt,
    ExceedLimit,
    AskAgain,
}

impl Lie {
    #[cfg(test)]
    pub const ALL: [Self; 26] = [
        Self::DropEntry,
        Self::RepeatEntry,
        Self::CutPage,
        Self::AddedTooFew,
        Self::AddedTooMany,
        Self::NothingDeleted,
        Self::OldLastId,
        Self::LateFirst,
        Self::SkipBatch,
        Self::RepeatBatch,
        Self::SkipRow,
        Self::LostTooFew,
        Self::LostTooMany,
        Self::SwallowLoss,
        Self::CallItExact,
        Self::CallItBound,
        Self::LowBound,
        Self::InventLoss,
        Self::InventReplacement,
        Self::HideReplacement,
        Self::RefuseAgain,
        Self::PositionAhead,
        Self::PositionBehind,
        Self::HideDoubt,
        Self::ExceedLimit,
        Self::AskAgain,
    ];

    /// Those that take seconds to find: only the larger size of the tests tells them.
    #[cfg(test)]
    pub const LONG_TO_FIND: [Self; 3] = [Self::NothingDeleted, Self::HideReplacement, Self::HideDoubt];
}
