//! `values` of a limit: the values of a part that count by themselves. All others count as one, so
//! that clients gain nothing by inventing values.

use super::text::Given;
use super::{Key, Part};
use crate::path::Case;

/// The value of all values that are not listed.
pub const OTHER: &str = "other";

/// The values of one part that count by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListedValues {
    pub part: Part,
    /// In the spelling that is hashed.
    values: Vec<Box<[u8]>>,
}

impl ListedValues {
    /// Takes values as requests carry them. Those of `ip` must be [`ListedValues::of_given`].
    pub fn new<'v>(part: Part, values: impl IntoIterator<Item = &'v str>) -> ListedValues {
        let given = values
            .into_iter()
            .map(|text| Given::text(part.clone(), text));
        let given: Vec<Given> = given.collect();
        ListedValues::of_given(part, &given)
    }

    pub fn of_given(part: Part, given: &[Given]) -> ListedValues {
        let values = given.iter().map(|one| one.value().into());
        ListedValues {
            part,
            values: values.collect(),
        }
    }

    fn fold(&mut self) {
        for value in &mut self.values {
            if let Some(folded) = self.part.folded(value) {
                *value = folded.into();
            }
        }
    }

    fn counted<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        match self.values.iter().any(|known| **known == *value) {
            true => value,
            false => OTHER.as_bytes(),
        }
    }
}

impl Key {
    /// Takes listed values in the spelling of paths of this case.
    pub(in crate::limit) fn set_case(&mut self, case: Case) {
        if case == Case::Insensitive {
            self.listed.iter_mut().for_each(ListedValues::fold);
        }
    }

    /// Whether only listed values of this part count by themselves.
    pub fn lists(&self, part: &Part) -> bool {
        self.listed.iter().any(|one| one.part == *part)
    }

    /// The value that a value of this part counts as.
    pub(super) fn counted<'v>(&self, part: Option<&Part>, value: &'v [u8]) -> &'v [u8] {
        let of_part = |one: &&ListedValues| Some(&one.part) == part;
        match self.listed.iter().find(of_part) {
            Some(listed) => listed.counted(value),
            None => value,
        }
    }

    /// The same for a value that an operator names.
    pub fn counted_given(&self, given: Given) -> Given {
        let value = self.counted(given.part(), given.value());
        match (value == given.value(), given.part()) {
            (false, Some(part)) => Given::text(part.clone(), OTHER),
            _ => given,
        }
    }
}
