//! [`TileTable`]: a table that all tiles of a tensor are decoded with.

use std::sync::Arc;

use crate::Result;

/// Names a table, so that a worker recognises the one that it has.
#[derive(Debug, Clone, Default)]
pub(crate) struct TableOwner(Arc<()>);

/// A worker's table. It is loaded with the first tile of a tensor, for it can have more values than
/// a tile.
#[derive(Debug, Default)]
pub(crate) struct TileTable {
    /// Keeps the owner's address from being given to another.
    owner: Option<TableOwner>,
    values: Vec<f32>,
}

impl TileTable {
    /// Has the table of `owner`, which `fill` appends to an empty buffer if it is another than the
    /// last one.
    ///
    /// # Errors
    /// That of `fill`; then no tensor's table is there.
    pub(crate) fn load(
        &mut self,
        owner: &TableOwner,
        fill: impl FnOnce(&mut Vec<f32>) -> Result<()>,
    ) -> Result<()> {
        let last = self.owner.take();
        if !last.is_some_and(|last| Arc::ptr_eq(&last.0, &owner.0)) {
            self.values.clear();
            fill(&mut self.values)?;
        }
        self.owner = Some(owner.clone());
        Ok(())
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_loaded_once_for_its_owner() {
        let (mut table, [first, second]) =
            (TileTable::default(), [(); 2].map(|()| TableOwner::default()));
        let mut load = |owner: &TableOwner, value: Option<f32>| {
            let mut is_filled = false;
            let loaded = table.load(owner, |values| {
                is_filled = true;
                values.push(value.unwrap_or(0.0));
                value
                    .map(drop)
                    .ok_or_else(|| crate::AnamnesisError::parse("no"))
            });
            (loaded.is_ok(), is_filled, table.values().to_vec())
        };
        assert_eq!(load(&first, Some(1.0)), (true, true, vec![1.0]));
        assert_eq!(load(&first, Some(2.0)), (true, false, vec![1.0]));
        assert_eq!(load(&second, Some(3.0)), (true, true, vec![3.0]));
        assert!(!load(&first, None).0);
        assert_eq!(load(&second, Some(4.0)), (true, true, vec![4.0]));
    }
}
