//! How a tensor is divided among processes.

use std::collections::HashSet;

use super::super::pieces::Rectangle;
use crate::{AnamnesisError, Result};

/// What the processes along a dimension of the mesh have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// Chunks along this dimension of the tensor.
    Shard(usize),
    /// The whole tensor, each of them.
    Replicate,
}

/// The part of a process.
#[derive(Debug)]
pub(super) struct Division {
    /// The size of the whole tensor.
    pub size: Vec<usize>,
    /// Where the process is in the mesh.
    pub coordinate: Vec<usize>,
    /// A placement for each dimension of the mesh.
    pub placements: Vec<Placement>,
}

/// Numbers of processes along the dimensions of the mesh.
pub(super) struct MeshShape(Vec<usize>);

impl MeshShape {
    /// The mesh whose processes have these coordinates.
    ///
    /// # Errors
    /// `Parse` if they do not fill one.
    pub(super) fn of(coordinates: &[&[usize]]) -> Result<Self> {
        let wrong = || AnamnesisError::parse("the coordinates of the processes do not fill a mesh");
        let dimensions = coordinates.first().map_or(0, |first| first.len());
        let different: HashSet<&[usize]> = coordinates.iter().copied().collect();
        if different.len() != coordinates.len()
            || coordinates.iter().any(|at| at.len() != dimensions)
        {
            return Err(wrong());
        }
        let largest = |i: usize| coordinates.iter().map(|at| at[i]).max().unwrap_or(0);
        let shape: Vec<usize> = (0..dimensions)
            .map(|i| largest(i).checked_add(1).ok_or_else(wrong))
            .collect::<Result<_>>()?;
        let processes = shape.iter().try_fold(1usize, |n, &len| n.checked_mul(len));
        match processes == Some(coordinates.len()) {
            true => Ok(Self(shape)),
            false => Err(wrong()),
        }
    }

    /// The rectangle of a process's part.
    ///
    /// # Errors
    /// `Parse` if the division is none of this mesh; `Unsupported` if a dimension is divided twice.
    pub(super) fn rectangle(&self, division: &Division) -> Result<Rectangle> {
        let Division { size, coordinate, placements } = division;
        if placements.len() != self.0.len() {
            return Err(AnamnesisError::parse(
                "it is divided along another mesh than its processes",
            ));
        }
        let mut part = Rectangle { start: vec![0; size.len()], sizes: size.clone() };
        let mut divided = HashSet::new();
        for ((&placement, &at), &processes) in placements.iter().zip(coordinate).zip(&self.0) {
            let Placement::Shard(dimension) = placement else {
                continue;
            };
            let Some(&len) = size.get(dimension) else {
                return Err(AnamnesisError::parse("it is divided along a dimension that it lacks"));
            };
            if !divided.insert(dimension) {
                let what = "a dimension that is divided twice; its parts are not joined";
                return Err(AnamnesisError::unsupported("files of FSDP", what));
            }
            // The last processes may have fewer elements, or none.
            let chunk = len.div_ceil(processes);
            let start = at.saturating_mul(chunk).min(len);
            part.start[dimension] = start;
            part.sizes[dimension] = chunk.min(len - start);
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(size: &[usize], mesh: &[usize], placements: &[Placement]) -> Vec<Rectangle> {
        let n: usize = mesh.iter().product();
        let coordinate = |rank: usize| {
            let mut rest = rank;
            let mut at: Vec<usize> = mesh
                .iter()
                .rev()
                .map(|len| {
                    let at = rest % len;
                    rest /= len;
                    at
                })
                .collect();
            at.reverse();
            at
        };
        let all: Vec<Division> = (0..n)
            .map(|rank| Division {
                size: size.to_vec(),
                coordinate: coordinate(rank),
                placements: placements.to_vec(),
            })
            .collect();
        let coordinates: Vec<&[usize]> = all.iter().map(|d| d.coordinate.as_slice()).collect();
        let mesh = MeshShape::of(&coordinates).unwrap();
        all.iter().map(|d| mesh.rectangle(d).unwrap()).collect()
    }

    #[test]
    fn chunks_are_those_of_torch() {
        let rows = |n: usize| {
            let parts = parts(&[n, 3], &[4], &[Placement::Shard(0)]);
            parts
                .iter()
                .map(|part| (part.start[0], part.sizes[0]))
                .collect::<Vec<_>>()
        };
        assert_eq!(rows(5), [(0, 2), (2, 2), (4, 1), (5, 0)]);
        assert_eq!(rows(2), [(0, 1), (1, 1), (2, 0), (2, 0)]);
        assert_eq!(rows(0), [(0, 0); 4]);
        let both = parts(&[5, 3], &[2, 2], &[Placement::Replicate, Placement::Shard(1)]);
        assert_eq!(both[0], both[2]);
        assert_eq!((both[1].start[1], both[1].sizes[1]), (2, 1));
    }

    #[test]
    fn coordinates_fill_a_mesh() {
        for wrong in [
            &[&[0][..], &[2][..]][..],
            &[&[0], &[0]],
            &[&[0], &[0, 1]],
            &[&[usize::MAX], &[0]],
            &[&[0, 0], &[1, 1]],
        ] {
            assert!(MeshShape::of(wrong).is_err(), "{wrong:?}");
        }
        let division = Division { size: vec![3], coordinate: vec![0], placements: vec![] };
        assert!(
            MeshShape::of(&[&[0]])
                .unwrap()
                .rectangle(&division)
                .is_err()
        );
    }
}
