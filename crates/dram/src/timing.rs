//! A memory file's times in cycles of its clock.

use crate::duration::ClockTime;
use crate::file::{ChannelFile, DramFile, NvmFile};

/// Load or store, as an index.
pub const READ: usize = 0;
/// See [`READ`].
pub const WRITE: usize = 1;

/// Times of DRAM, in cycles; names as in [`crate::file::DramTimes`], a field for each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DramCycles {
    pub cl: u64,
    pub cwl: u64,
    pub burst: u64,
    /// By direction: activate to read, activate to write.
    pub rcd: [u64; 2],
    pub rp: u64,
    pub ras: u64,
    pub rrd_s: u64,
    pub rrd_l: u64,
    pub faw: u64,
    pub wtr_s: u64,
    pub wtr_l: u64,
    pub rtp: u64,
    pub wr: u64,
    pub ccd_s: u64,
    pub ccd_l: u64,
    pub ccd_l_wr: u64,
    pub ppd: u64,
    pub rtw: u64,
    pub cs: u64,
    pub rfc: u64,
    pub refi: u64,
}

impl DramCycles {
    /// Resolves a file's times for its clock.
    pub fn new(dram: &DramFile, channel: &ChannelFile) -> Self {
        let period = channel.clock.value.nanos;
        let of = |time: &ClockTime| time.cycles_of(period);
        let times = &dram.timing;
        let rcd = of(&times.tRCD.value);
        let ccd_l = of(&times.tCCD_L.value);
        Self {
            cl: of(&times.CL.value),
            cwl: of(&times.CWL.value),
            burst: of(&times.tBURST.value),
            rcd: [rcd, times.tRCDWR.as_ref().map_or(rcd, |time| of(&time.value))],
            rp: of(&times.tRP.value),
            ras: of(&times.tRAS.value),
            rrd_s: of(&times.tRRD_S.value),
            rrd_l: of(&times.tRRD_L.value),
            faw: of(&times.tFAW.value),
            wtr_s: of(&times.tWTR_S.value),
            wtr_l: of(&times.tWTR_L.value),
            rtp: of(&times.tRTP.value),
            wr: of(&times.tWR.value),
            ccd_s: of(&times.tCCD_S.value),
            ccd_l,
            ccd_l_wr: times.tCCD_L_WR.as_ref().map_or(ccd_l, |time| of(&time.value)),
            ppd: times.tPPD.as_ref().map_or(1, |time| of(&time.value)),
            rtw: of(&times.tRTW.value),
            cs: of(&times.tCS.value),
            rfc: of(&times.tRFC.value),
            refi: of(&times.tREFI.value),
        }
    }

    /// All times but the refresh interval: a bound for serving one request.
    pub fn sum_without_refi(&self) -> u64 {
        let Self { cl, cwl, burst, rcd, rp, ras, rrd_s, rrd_l, faw, wtr_s, wtr_l, .. } = self;
        let Self { rtp, wr, ccd_s, ccd_l, ccd_l_wr, ppd, rtw, cs, rfc, .. } = self;
        let first = cl + cwl + burst + rcd[READ] + rcd[WRITE] + rp + ras + rrd_s + rrd_l + faw;
        first + wtr_s + wtr_l + rtp + wr + ccd_s + ccd_l + ccd_l_wr + ppd + rtw + cs + rfc
    }

    /// Column command to its data, by direction.
    pub fn latency(&self, direction: usize) -> u64 {
        if direction == READ { self.cl } else { self.cwl }
    }

    /// Time from one column command to the next of the same rank and of
    /// another bank group, by the directions of both.
    pub fn column_gap(&self, from: usize, to: usize) -> u64 {
        match (from, to) {
            (READ, READ) | (WRITE, WRITE) => self.ccd_s.max(self.burst),
            (READ, _) => (self.cl + self.burst + self.rtw).saturating_sub(self.cwl),
            _ => self.cwl + self.burst + self.wtr_s,
        }
    }

    /// The same within one bank group.
    pub fn column_gap_in_group(&self, from: usize, to: usize) -> u64 {
        let in_group = match (from, to) {
            (READ, READ) => self.ccd_l,
            (WRITE, WRITE) => self.ccd_l_wr,
            (READ, _) => 0,
            _ => self.cwl + self.burst + self.wtr_l,
        };
        in_group.max(self.column_gap(from, to))
    }
}

/// Times of non-volatile memory, in cycles; names as in [`crate::file::NvmTimes`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct NvmCycles {
    pub read: u64,
    pub read_cycle: u64,
    pub write: u64,
    pub send: u64,
    pub burst: u64,
    pub wtr: u64,
    pub rtw: u64,
    pub cs: u64,
}

impl NvmCycles {
    /// Resolves a file's times for its clock.
    pub fn new(nvm: &NvmFile, channel: &ChannelFile) -> Self {
        let period = channel.clock.value.nanos;
        let of = |time: &ClockTime| time.cycles_of(period);
        let times = &nvm.timing;
        let read = of(&times.tREAD.value);
        Self {
            read,
            read_cycle: times.tREAD_CYCLE.as_ref().map_or(read, |time| of(&time.value)),
            write: of(&times.tWRITE.value),
            send: of(&times.tSEND.value),
            burst: of(&times.tBURST.value),
            wtr: of(&times.tWTR.value),
            rtw: of(&times.tRTW.value),
            cs: of(&times.tCS.value),
        }
    }

    /// Time from one column command to the next of this module.
    pub fn column_gap(&self, from: usize, to: usize) -> u64 {
        match (from, to) {
            (READ, READ) | (WRITE, WRITE) => self.burst,
            (READ, _) => self.burst + self.rtw,
            _ => self.send + self.burst + self.wtr,
        }
    }
}
