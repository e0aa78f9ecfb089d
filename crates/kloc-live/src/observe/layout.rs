//! Where the fields that programs read are in the kernel that runs.

use super::btf::{BtfError, Types};

/// Offsets of fields of files, inodes and what they refer to, in bytes.
///
/// One field for each field of the kernel's that is read: there are as many as that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    /// `file.f_inode`
    pub file_inode: u32,
    /// `inode.i_mode`
    pub mode: u32,
    /// `inode.i_sb`
    pub superblock: u32,
    /// `inode.i_mapping`
    pub mapping: u32,
    /// `inode.i_ino`
    pub number: u32,
    /// `inode.i_nlink`
    pub links: u32,
    /// `inode.i_size`
    pub size: u32,
    /// `inode.i_generation`
    pub generation: u32,
    /// `super_block.s_dev`
    pub device: u32,
    /// `super_block.s_magic`
    pub magic: u32,
    /// `address_space.nrpages`
    pub pages: u32,
    /// `address_space.host`
    pub host: u32,
    /// From a VFS inode to ext4's count of its extents; `None` if the types of ext4 are not known.
    pub extents: Option<i32>,
    /// `inode.i_dentry`: the first of the names that the kernel's cache has of it. Each refers to the
    /// next one by the first field of an `hlist_node`.
    pub names: Option<u32>,
}

impl FileLayout {
    /// Looks all of them up.
    pub fn new(types: &Types) -> Result<Self, BtfError> {
        let inode = |field: &str| types.offset("inode", field);
        let extents = || {
            let at = |field: &str| types.offset("ext4_inode_info", field).ok();
            Some(at("i_es_all_nr")? as i32 - at("vfs_inode")? as i32)
        };
        Ok(Self {
            file_inode: types.offset("file", "f_inode")?,
            mode: inode("i_mode")?,
            superblock: inode("i_sb")?,
            mapping: inode("i_mapping")?,
            number: inode("i_ino")?,
            links: inode("i_nlink")?,
            size: inode("i_size")?,
            generation: inode("i_generation")?,
            device: types.offset("super_block", "s_dev")?,
            magic: types.offset("super_block", "s_magic")?,
            pages: types.offset("address_space", "nrpages")?,
            host: types.offset("address_space", "host")?,
            extents: extents(),
            names: inode("i_dentry").ok(),
        })
    }

    /// The part of an inode that is read in one piece: where it begins, and how long it is.
    pub fn head(&self) -> (u32, u32) {
        let ends = [
            (self.mode, 2),
            (self.superblock, 8),
            (self.mapping, 8),
            (self.number, 8),
            (self.links, 4),
            (self.size, 8),
        ];
        let begin = ends.iter().map(|(at, _)| *at).min().unwrap_or(0);
        let end = ends.iter().map(|(at, length)| at + length).max().unwrap_or(0);
        (begin, (end - begin).next_multiple_of(8))
    }
}

/// Whether the file system of an inode has a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLayout {
    /// `super_block.s_fs_info`
    pub information: u32,
    /// `ext4_sb_info.s_journal`
    pub journal: u32,
}

impl JournalLayout {
    /// Looks both up.
    pub fn new(types: &Types) -> Result<Self, BtfError> {
        Ok(Self {
            information: types.offset("super_block", "s_fs_info")?,
            journal: types.offset("ext4_sb_info", "s_journal")?,
        })
    }
}

/// The way from a task to the number of its memory control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLayout {
    /// `task_struct.cgroups`
    pub groups: u32,
    /// `css_set.subsys[memory_cgrp_id]`
    pub memory: u32,
    /// `cgroup_subsys_state.cgroup`
    pub group: u32,
    /// `cgroup.kn`
    pub node: u32,
    /// `kernfs_node.id`, which is the inode's number of the group's directory
    pub number: u32,
}

impl GroupLayout {
    /// Looks all of them up.
    pub fn new(types: &Types) -> Result<Self, BtfError> {
        let memory = types.constant("memory_cgrp_id")?;
        Ok(Self {
            groups: types.offset("task_struct", "cgroups")?,
            memory: types.offset("css_set", "subsys")? + 8 * memory,
            group: types.offset("cgroup_subsys_state", "cgroup")?,
            node: types.offset("cgroup", "kn")?,
            number: types.offset("kernfs_node", "id")?,
        })
    }
}

/// Who a task is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskLayout {
    /// `task_struct.tgid`
    pub process: u32,
    /// `task_struct.comm`
    pub command: u32,
}

impl TaskLayout {
    /// Looks both up.
    pub fn new(types: &Types) -> Result<Self, BtfError> {
        let task = |field: &str| types.offset("task_struct", field);
        Ok(Self { process: task("tgid")?, command: task("comm")? })
    }
}

/// The way from a task and a descriptor to the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorLayout {
    /// `task_struct.files`
    pub files: u32,
    /// `files_struct.fdt`
    pub table: u32,
    /// `fdtable.fd`
    pub array: u32,
    /// Where the number of the system call is in `pt_regs`
    pub call: u32,
}

impl DescriptorLayout {
    /// Looks all of them up.
    pub fn new(types: &Types) -> Result<Self, BtfError> {
        let call = if cfg!(target_arch = "aarch64") { "syscallno" } else { "orig_ax" };
        Ok(Self {
            files: types.offset("task_struct", "files")?,
            table: types.offset("files_struct", "fdt")?,
            array: types.offset("fdtable", "fd")?,
            call: types.offset("pt_regs", call)?,
        })
    }
}

/// From a block transfer to the file that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BioLayout {
    /// `bio.bi_io_vec`
    pub vector: u32,
    /// `bio_vec.bv_page`
    pub page: u32,
    /// `bio.bi_iter.bi_size`
    pub size: u32,
    /// `page.mapping`, or `folio.mapping`, which is in the same place
    pub mapping: u32,
    /// `page.compound_head`
    pub head: u32,
}

impl BioLayout {
    /// Looks all of them up.
    pub fn new(types: &Types) -> Result<Self, BtfError> {
        Ok(Self {
            vector: types.offset("bio", "bi_io_vec")?,
            page: types.offset("bio_vec", "bv_page")?,
            size: types.offset("bio", "bi_iter.bi_size")?,
            mapping: types.offset("folio", "mapping")?,
            head: types.offset("page", "compound_head")?,
        })
    }
}
