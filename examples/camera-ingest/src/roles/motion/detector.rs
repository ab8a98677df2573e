// SPDX-License-Identifier: MIT OR Apache-2.0

//! Motion in a sequence of images.
//!
//! 1. The luma is reduced to a grid of at most 96 x 96 cells, each the mean of up to 16 samples.
//! 2. The mean change of all cells is subtracted: light that changes everywhere is no motion.
//! 3. A cell moves if it differs by more than [`THRESHOLD`] from the background, which follows the
//!    image by an eighth of the difference: what stands still becomes background in about a second.
//! 4. Only cells whose center is in a zone count. The score is the part of these cells that moves.
//! 5. Moving cells of a zone that touch each other, diagonally too, are one box, if they are at
//!    least [`MIN_CELLS`]. Its score is the part of its cells that moves.

use crate::{config::Zone, results::Region};

/// Largest number of cells in a row and in a column.
const GRID: usize = 96;
/// Samples of a cell in a row and in a column.
const SAMPLES: usize = 4;
/// Minimum difference of a moving cell, of 255.
const THRESHOLD: f32 = 12.0;
/// Part of the difference by which the background follows.
const ADAPTATION: f32 = 0.125;
/// Minimum number of cells of a box.
const MIN_CELLS: usize = 3;
/// Maximum number of boxes in a result: the largest ones.
const MAX_BOXES: usize = 32;

/// Label of boxes where no zone is configured.
const WHOLE: &str = "motion";

/// Detector for images of one size.
pub struct Detector {
    width: usize,
    height: usize,
    columns: usize,
    rows: usize,
    areas: Vec<Area>,
    background: Option<Vec<f32>>,
}

/// The cells of a zone.
struct Area {
    label: String,
    cells: Vec<bool>,
}

impl Detector {
    /// Returns a detector for images of this size; without zones, for the whole image.
    pub fn new(width: usize, height: usize, zones: &[Zone]) -> Self {
        let (columns, rows) = (width.clamp(1, GRID), height.clamp(1, GRID));
        let mut detector = Self { width, height, columns, rows, areas: Vec::new(), background: None };
        detector.set_zones(zones);
        detector
    }

    /// Changes the zones; the background stays.
    pub fn set_zones(&mut self, zones: &[Zone]) {
        let (columns, rows) = (self.columns, self.rows);
        let center = |cell: usize, cells: usize| (cell as f64 + 0.5) / cells as f64;
        let area = |zone: &Zone| Area {
            label: zone.name.clone(),
            cells: (0..columns * rows)
                .map(|cell| {
                    contains(&zone.points, center(cell % columns, columns), center(cell / columns, rows))
                })
                .collect(),
        };
        self.areas = zones.iter().map(area).collect();
        if zones.is_empty() {
            self.areas.push(Area { label: WHOLE.to_owned(), cells: vec![true; columns * rows] });
        }
    }

    /// Returns whether the detector is for images of this size.
    pub fn fits(&self, width: usize, height: usize) -> bool {
        (self.width, self.height) == (width, height)
    }

    /// Returns score and boxes of the next image; `row` returns a row of luma.
    pub fn next<'a>(&mut self, row: impl Fn(usize) -> &'a [u8]) -> (f64, Vec<Region>) {
        let now = self.reduce(row);
        let Some(background) = &mut self.background else {
            self.background = Some(now);
            return (0.0, Vec::new());
        };
        let changes = now.iter().zip(&*background).map(|(now, before)| now - before);
        let mean = changes.clone().sum::<f32>() / now.len() as f32;
        let moving: Vec<_> = changes.map(|change| (change - mean).abs() > THRESHOLD).collect();
        for (before, now) in background.iter_mut().zip(&now) {
            *before += (now - *before) * ADAPTATION;
        }
        (self.score(&moving), self.boxes(&moving))
    }

    /// Returns the mean of each cell.
    fn reduce<'a>(&self, row: impl Fn(usize) -> &'a [u8]) -> Vec<f32> {
        let range = |cell: usize, cells: usize, size: usize| {
            let (start, end) = (cell * size / cells, (cell + 1) * size / cells);
            (start..end).step_by((end - start).div_ceil(SAMPLES).max(1))
        };
        let mut cells = Vec::with_capacity(self.columns * self.rows);
        for cell_row in 0..self.rows {
            let lines: Vec<_> = range(cell_row, self.rows, self.height).map(&row).collect();
            for column in 0..self.columns {
                let (mut sum, mut count) = (0_u32, 0_u32);
                for x in range(column, self.columns, self.width) {
                    for sample in lines.iter().filter_map(|line| line.get(x)) {
                        sum += u32::from(*sample);
                        count += 1;
                    }
                }
                cells.push(sum as f32 / count.max(1) as f32);
            }
        }
        cells
    }

    fn score(&self, moving: &[bool]) -> f64 {
        let is_in_area = |cell: usize| self.areas.iter().any(|area| area.cells[cell]);
        let (mut all, mut moved) = (0_u32, 0_u32);
        for (cell, moves) in moving.iter().enumerate() {
            if is_in_area(cell) {
                all += 1;
                moved += u32::from(*moves);
            }
        }
        f64::from(moved) / f64::from(all.max(1))
    }

    /// Returns the boxes of all zones, the largest ones first.
    fn boxes(&self, moving: &[bool]) -> Vec<Region> {
        let mut boxes: Vec<_> = self.areas.iter().flat_map(|area| self.boxes_of(area, moving)).collect();
        boxes.sort_by(|a, b| (b.width * b.height).total_cmp(&(a.width * a.height)));
        boxes.truncate(MAX_BOXES);
        boxes
    }

    fn boxes_of(&self, area: &Area, moving: &[bool]) -> Vec<Region> {
        let mut open: Vec<_> =
            area.cells.iter().zip(moving).map(|(inside, moves)| *inside && *moves).collect();
        let mut boxes = Vec::new();
        for start in 0..open.len() {
            let group = self.take_group(&mut open, start);
            if group.len() >= MIN_CELLS {
                boxes.push(self.bounds(&group, &area.label));
            }
        }
        boxes
    }

    /// Takes the cell and all that are connected with it.
    fn take_group(&self, open: &mut [bool], start: usize) -> Vec<usize> {
        let mut group = Vec::new();
        let mut next = vec![start];
        while let Some(cell) = next.pop() {
            if !std::mem::take(&mut open[cell]) {
                continue;
            }
            group.push(cell);
            let (column, row) = (cell % self.columns, cell / self.columns);
            for row in row.saturating_sub(1)..=(row + 1).min(self.rows - 1) {
                for column in column.saturating_sub(1)..=(column + 1).min(self.columns - 1) {
                    next.push(row * self.columns + column);
                }
            }
        }
        group
    }

    fn bounds(&self, group: &[usize], label: &str) -> Region {
        let columns = group.iter().map(|cell| cell % self.columns);
        let rows = group.iter().map(|cell| cell / self.columns);
        let left = columns.clone().min().unwrap_or(0);
        let right = columns.max().unwrap_or(0) + 1;
        let top = rows.clone().min().unwrap_or(0);
        let bottom = rows.max().unwrap_or(0) + 1;
        let part = |cell: usize, cells: usize| cell as f64 / cells as f64;
        Region {
            x: part(left, self.columns),
            y: part(top, self.rows),
            width: part(right - left, self.columns),
            height: part(bottom - top, self.rows),
            label: label.to_owned(),
            score: group.len() as f64 / ((right - left) * (bottom - top)) as f64,
        }
    }
}

/// Returns whether a point is in a polygon: a ray from it crosses its edges an odd number of times.
fn contains(polygon: &[[f64; 2]], x: f64, y: f64) -> bool {
    let mut is_inside = false;
    let before = polygon.iter().cycle().skip(polygon.len().saturating_sub(1));
    for ([x1, y1], [x2, y2]) in polygon.iter().zip(before) {
        if (*y1 > y) != (*y2 > y) && x < (x2 - x1) * (y - y1) / (y2 - y1) + x1 {
            is_inside = !is_inside;
        }
    }
    is_inside
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 640;
    const HEIGHT: usize = 360;

    /// Returns a gray image with a white block of 64 x 36 at (x, y).
    fn image(gray: u8, block: Option<(usize, usize)>) -> Vec<Vec<u8>> {
        let mut rows = vec![vec![gray; WIDTH]; HEIGHT];
        if let Some((x, y)) = block {
            rows[y..y + 36].iter_mut().for_each(|row| row[x..x + 64].fill(250));
        }
        rows
    }

    fn run(zones: &[Zone], images: &[Vec<Vec<u8>>]) -> (f64, Vec<Region>) {
        let mut detector = Detector::new(WIDTH, HEIGHT, zones);
        images.iter().map(|image| detector.next(|row| &image[row])).last().unwrap()
    }

    fn zone(name: &str, left: f64, right: f64) -> Zone {
        Zone { name: name.into(), points: vec![[left, 0.0], [right, 0.0], [right, 1.0], [left, 1.0]] }
    }

    #[test]
    fn moving_block_is_one_box_around_it() {
        let (score, boxes) = run(&[], &[image(90, None), image(90, Some((320, 180)))]);
        // A hundredth of the image, and the cells that the block touches.
        assert!((0.009..0.015).contains(&score), "{score}");
        let [found] = boxes.as_slice() else { panic!("{boxes:?}") };
        assert!((found.x - 0.5).abs() < 0.011 && (found.y - 0.5).abs() < 0.011, "{found:?}");
        assert!((found.width - 0.1).abs() < 0.022 && (found.height - 0.1).abs() < 0.022, "{found:?}");
        assert!((found.label.as_str(), found.score > 0.9) == ("motion", true), "{found:?}");
    }

    #[test]
    fn still_image_and_changing_light_are_no_motion() {
        let block = Some((320, 180));
        assert_eq!(run(&[], &[image(90, block), image(90, block)]), (0.0, Vec::new()));
        assert_eq!(run(&[], &[image(90, None), image(160, None)]), (0.0, Vec::new()));
    }

    #[test]
    fn block_that_stands_still_becomes_background() {
        let mut images = vec![image(90, Some((320, 180))); 40];
        images[0] = image(90, None);
        assert_eq!(run(&[], &images), (0.0, Vec::new()));
        // Negative control: it was none at first.
        assert!(run(&[], &images[..3]).0 > 0.0);
    }

    #[test]
    fn motion_counts_in_zones_only() {
        let images = [image(90, None), image(90, Some((320, 180)))];
        let (score, boxes) = run(&[zone("left", 0.0, 0.4)], &images);
        assert_eq!((score, boxes), (0.0, Vec::new()));
        let (score, boxes) = run(&[zone("left", 0.0, 0.4), zone("right", 0.5, 1.0)], &images);
        assert!((0.009..0.02).contains(&score), "{score}");
        assert_eq!(boxes.iter().map(|found| found.label.as_str()).collect::<Vec<_>>(), ["right"]);
    }

    #[test]
    fn polygons_contain_points_of_their_inside() {
        let triangle = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]];
        assert!(contains(&triangle, 0.2, 0.2));
        assert!(!contains(&triangle, 0.8, 0.8));
        assert!(!contains(&[], 0.5, 0.5));
    }

    #[test]
    fn images_smaller_than_the_grid_are_scored() {
        let mut detector = Detector::new(3, 2, &[]);
        let (dark, light) = ([[0_u8, 0, 0], [0, 0, 0]], [[0_u8, 0, 255], [0, 0, 255]]);
        detector.next(|row| &dark[row]);
        assert!((detector.next(|row| &light[row]).0 - 1.0).abs() < 1.0);
    }
}
