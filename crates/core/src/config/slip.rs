//! Which of several words a misspelt one was probably meant to be.

/// The candidate that a person most likely meant.
pub(super) fn nearest<'c>(
    text: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', ' ', '.'], "_");
    let wanted = plain(text);
    candidates
        .into_iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&wanted, &plain(candidate)),
                candidate,
            )
        })
        .filter(|(distance, candidate)| {
            let longest = candidate.chars().count().max(wanted.chars().count());
            *distance <= (longest / 3).max(1) && *distance < longest
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
