//! Progress on stderr: a bar on a terminal, a line now and then elsewhere, or lines of JSON.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use terminal_size::terminal_size_of;
use unicode_width::UnicodeWidthStr;

use super::args::{ProgressMode, ReadArgs};
use super::table::cut;
use crate::error::counted;
use crate::{Progress, format_bytes};

/// Time between two looks at what was done.
const TICK: Duration = Duration::from_millis(200);

/// Time between two lines of text.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Time between two lines of JSON.
const JSON_EVERY: Duration = Duration::from_millis(250);

/// Time between two drawings of a bar.
const BAR_EVERY: Duration = Duration::from_millis(100);

/// Most characters between the brackets of a bar, and fewest.
const BAR: usize = 20;
const LEAST_BAR: usize = 6;

/// Columns right of a bar that stay free: a terminal shows Ctrl-C as `^C` behind it, and a line that is
/// full continues in the next.
const FREE: usize = 3;

/// The line with the bar that is drawn, above which other lines are printed; empty without a bar.
static DRAWN: Mutex<String> = Mutex::new(String::new());

/// How the progress is shown.
enum Display {
    Silent,
    Bar,
    Lines {
        out: Box<dyn Write + Send>,
        every: Duration,
        /// Whether the first and the last line are printed however short the work is.
        is_eager: bool,
    },
    Json(Box<dyn Write + Send>),
}

/// What is worked on.
#[derive(Default)]
pub(super) struct Work {
    /// What is done, such as `Recalling...`.
    pub verb: &'static str,
    /// The files that are written, or the one that is read.
    pub files: Vec<String>,
    pub total_bytes: u64,
    pub total_tensors: usize,
}

/// Shows the progress of one command.
pub(super) struct Meter(Arc<Mutex<MeterState>>);

struct MeterState {
    display: Display,
    work: Work,
    now: Progress,
    /// Start of the work.
    started: Instant,
    /// Time of the last line.
    shown: Instant,
    /// Whether a bar has been drawn.
    is_drawn: bool,
}

/// A line of `--progress json`.
#[derive(serde::Serialize)]
struct ProgressEvent<'a> {
    event: &'static str,
    file: Option<&'a str>,
    done_tensors: usize,
    total_tensors: usize,
    done_bytes: u64,
    total_bytes: u64,
    seconds: f64,
}

impl Meter {
    /// A meter that shows nothing before it is [started](Self::start).
    pub(super) fn new(args: &ReadArgs) -> Self {
        let stderr = || Box::new(std::io::stderr()) as Box<dyn Write + Send>;
        let lines = |is_eager| Display::Lines { out: stderr(), every: LINE_EVERY, is_eager };
        Self::of_display(match (args.progress, std::io::stderr().is_terminal()) {
            (ProgressMode::Json, _) => Display::Json(stderr()),
            (ProgressMode::Never, _) => Display::Silent,
            (ProgressMode::Auto, _) if args.messages.quiet => Display::Silent,
            (ProgressMode::Auto | ProgressMode::Always, true) => Display::Bar,
            (ProgressMode::Auto, false) => lines(false),
            (ProgressMode::Always, false) => lines(true),
        })
    }

    fn of_display(display: Display) -> Self {
        Self(Arc::new(Mutex::new(MeterState {
            display,
            work: Work::default(),
            now: Progress::default(),
            started: Instant::now(),
            shown: Instant::now(),
            is_drawn: false,
        })))
    }

    /// A function that takes the progress of a conversion or a comparison.
    pub(super) fn listener(&self) -> impl Fn(Progress) + Send + Sync + 'static {
        let state = self.0.clone();
        move |progress| {
            let mut state = lock(&state);
            // Threads report in any order.
            let now = &mut state.now;
            now.done_bytes = now.done_bytes.max(progress.done_bytes);
            now.done_tensors = now.done_tensors.max(progress.done_tensors);
            now.file = progress.file;
            // The totals are first known here if several passes are one work.
            let totals = (progress.total_bytes, progress.total_tensors);
            (state.work.total_bytes, state.work.total_tensors) = totals;
            state.look();
        }
    }

    /// A function that takes the progress of several passes, each of which begins anew, and adds it
    /// up.
    pub(super) fn summing_listener(&self) -> impl Fn(Progress) + Send + Sync + 'static {
        let state = self.0.clone();
        move |progress| {
            let mut state = lock(&state);
            state.now.done_bytes += progress.step_bytes;
            state.look();
        }
    }

    /// Counts a tensor as done.
    pub(super) fn add_tensor(&self) {
        lock(&self.0).now.done_tensors += 1;
    }

    /// Begins to show the progress of `work`.
    pub(super) fn start(&self, work: Work) {
        let mut state = lock(&self.0);
        (state.started, state.shown, state.work) = (Instant::now(), Instant::now(), work);
        state.now = Progress::default();
        match &mut state.display {
            Display::Silent => return,
            Display::Bar => {}
            Display::Lines { is_eager: true, .. } => state.write_line(),
            Display::Lines { .. } => {}
            Display::Json(_) => state.write_event("start"),
        }
        drop(state);
        // Without this thread the progress is shown at each report alone.
        let weak = Arc::downgrade(&self.0);
        let _ = thread::Builder::new().spawn(move || tick(&weak));
    }

    /// Shows the end of the work, and nothing more.
    pub(super) fn finish(&self, is_done: bool) {
        let mut state = lock(&self.0);
        match &state.display {
            Display::Silent => {}
            Display::Bar => draw(String::new()),
            Display::Lines { is_eager: true, .. } => state.write_line(),
            Display::Lines { .. } => {}
            Display::Json(_) => state.write_event(if is_done { "end" } else { "failed" }),
        }
        state.display = Display::Silent;
    }
}

/// Looks again and again at what was done, until the work is finished.
fn tick(state: &Weak<Mutex<MeterState>>) {
    while let Some(state) = state.upgrade() {
        let mut now = lock(&state);
        if matches!(now.display, Display::Silent) {
            return;
        }
        now.look();
        drop(now);
        drop(state);
        thread::sleep(TICK);
    }
}

fn lock(state: &Mutex<MeterState>) -> MutexGuard<'_, MeterState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MeterState {
    /// Shows what was done, if it is time.
    fn look(&mut self) {
        let since = self.shown.elapsed();
        match &self.display {
            Display::Bar if since >= BAR_EVERY || !self.is_drawn => {
                let size = terminal_size_of(std::io::stderr());
                let width = size.map_or(80, |(width, _)| width.0.into());
                draw(self.bar(width));
                (self.shown, self.is_drawn) = (Instant::now(), true);
            }
            Display::Lines { every, .. } if since >= *every => self.write_line(),
            Display::Json(_) if since >= JSON_EVERY => self.write_event("progress"),
            _ => {}
        }
    }

    /// Bytes in a second, and the seconds that are left at this rate.
    fn rate(&self) -> (f64, f64) {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = self.now.done_bytes as f64 / seconds.max(1e-9);
        let left = self.work.total_bytes.saturating_sub(self.now.done_bytes) as f64;
        (rate, left / rate.max(1e-9))
    }

    /// The line with the bar on a terminal of `width` columns: what is done, as far as it fits.
    fn bar(&self, width: usize) -> String {
        let (work, room) = (&self.work, width.saturating_sub(FREE));
        let share = match work.total_bytes {
            0 => 0.0,
            total => (self.now.done_bytes as f64 / total as f64).min(1.0),
        };
        let (rate, left) = self.rate();
        let left = match left {
            _ if self.now.done_bytes == 0 => "-".to_owned(),
            0.0..100.0 => format!("{left:.0}s"),
            100.0..6000.0 => format!("{:.0}m", left / 60.0),
            _ => format!("{:.0}h", left / 3600.0),
        };
        let (percent, rate) = ((share * 100.0) as u32, format_bytes(rate as u64));
        let figures = format!("{percent}% {rate}/s ETA {left}");
        let verb = work.verb.trim_end();
        let tensors = counted(work.total_tensors, "tensor");
        let titles = [format!("{verb} {tensors} "), format!("{verb} ")];
        for title in titles.iter().map(String::as_str).chain([""]) {
            let taken = title.width() + "[] ".len() + figures.width();
            let length = room.saturating_sub(taken).min(BAR);
            if length >= LEAST_BAR {
                let done = (share * length as f64) as usize;
                let head = if done < length { ">" } else { "" };
                let bar = "=".repeat(done) + head;
                return format!("{title}[{bar:<length$}] {figures}");
            }
        }
        cut(&figures, room)
    }

    /// Writes a line of text.
    fn write_line(&mut self) {
        let (work, now) = (&self.work, &self.now);
        let (rate, left) = self.rate();
        let mut line = format!(
            "{} {} of {}, {} of {}",
            work.verb.trim_end(),
            now.done_tensors,
            counted(work.total_tensors, "tensor"),
            format_bytes(now.done_bytes),
            format_bytes(work.total_bytes)
        );
        if now.done_bytes > 0 && work.total_bytes > 0 {
            let percent = now.done_bytes as f64 / work.total_bytes as f64 * 100.0;
            let rate = format_bytes(rate as u64);
            line += &format!(" ({percent:.0} %), {rate}/s, {left:.0} s left");
        }
        self.shown = Instant::now();
        if let Display::Lines { out, .. } = &mut self.display {
            let _ = writeln!(out, "{line}");
        }
    }

    /// Writes a line of JSON.
    fn write_event(&mut self, event: &'static str) {
        let event = ProgressEvent {
            event,
            file: self.work.files.get(self.now.file).map(String::as_str),
            done_tensors: self.now.done_tensors,
            total_tensors: self.work.total_tensors,
            done_bytes: self.now.done_bytes,
            total_bytes: self.work.total_bytes,
            seconds: self.started.elapsed().as_secs_f64(),
        };
        // In one write, so that no line of another thread comes between.
        let line = serde_json::to_string(&event).map(|line| line + "\n");
        self.shown = Instant::now();
        if let (Display::Json(out), Ok(line)) = (&mut self.display, line) {
            let _ = out.write_all(line.as_bytes());
        }
    }
}

/// Draws `line` in place of the line with the bar; nothing if it is empty. Spaces cover the one before,
/// and `^C` behind it: no escape sequences are needed, which some consoles lack.
fn draw(line: String) {
    let mut drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let before = drawn.width();
    if before == 0 && line.is_empty() {
        return;
    }
    let text = format!("{}{line}", blank(before));
    // In one write, so that nothing comes between.
    let _ = std::io::stderr().write_all(text.as_bytes());
    *drawn = line;
}

/// What makes a line of so many columns empty, and `^C` behind them.
fn blank(columns: usize) -> String {
    format!("\r{}\r", " ".repeat(columns + FREE - 1))
}

/// Prints a line on stderr, above the bar if one is drawn.
pub(super) fn print_above_bar(line: &str) {
    let drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    let text = match drawn.width() {
        0 => format!("{line}\n"),
        columns => format!("{}{line}\n{drawn}", blank(columns)),
    };
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose lines can be read while it is written to.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn meter(lines: &Lines, every: Duration, is_eager: bool) -> Meter {
        let meter =
            Meter::of_display(Display::Lines { out: Box::new(lines.clone()), every, is_eager });
        meter.start(Work {
            verb: "Copying...  ",
            total_bytes: 2048,
            total_tensors: 2,
            files: vec![],
        });
        meter
    }

    fn half() -> Progress {
        let mut progress = Progress::default();
        (progress.done_bytes, progress.total_bytes) = (1024, 2048);
        (progress.done_tensors, progress.total_tensors) = (1, 2);
        progress
    }

    #[test]
    fn a_line_each_interval_also_without_reports() {
        let lines = Lines::default();
        let meter = meter(&lines, Duration::from_millis(50), false);
        meter.listener()(half());
        let begun = Instant::now();
        while lines.0.lock().unwrap().is_empty() && begun.elapsed().as_secs() < 20 {
            thread::sleep(Duration::from_millis(10));
        }
        meter.finish(true);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let expected = "Copying... 1 of 2 tensors, 1.0 KB of 2.0 KB (50 %), ";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn nothing_of_short_work() {
        let lines = Lines::default();
        let meter = meter(&lines, LINE_EVERY, false);
        meter.listener()(half());
        meter.finish(true);
        assert!(lines.0.lock().unwrap().is_empty());
    }

    /// The line fits any terminal, and three columns stay free.
    #[test]
    fn bars_fit() {
        let state = |done| {
            let meter = Meter::of_display(Display::Silent);
            let mut state = Arc::into_inner(meter.0).unwrap().into_inner().unwrap();
            state.work = Work {
                verb: "Forgetting...",
                total_bytes: 4000,
                total_tensors: 1234,
                files: vec![],
            };
            state.now.done_bytes = done;
            state.started = Instant::now() - Duration::from_secs(4000);
            state
        };
        let half = state(2000);
        assert_eq!(
            half.bar(80),
            "Forgetting... 1234 tensors [==========>         ] 50% 0 B/s ETA 67m"
        );
        assert_eq!(half.bar(50), "Forgetting... [======>      ] 50% 0 B/s ETA 67m");
        assert_eq!(half.bar(40), "[========>        ] 50% 0 B/s ETA 67m");
        assert_eq!(half.bar(30), "[===>   ] 50% 0 B/s ETA 67m");
        assert_eq!(half.bar(12), "50% 0 B/…");
        assert_eq!(half.bar(0).width(), 1);
        assert!(state(4000).bar(100).contains("[====================] 100%"));
        assert!(
            state(0)
                .bar(100)
                .ends_with("[>                   ] 0% 0 B/s ETA -")
        );
        for width in 12..100 {
            assert!(half.bar(width).width() <= width - FREE, "{width}");
        }
    }
}
