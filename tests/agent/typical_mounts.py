"""What kernels say of network file systems, as captures that others keep have it; see ``typical_nodes``."""

LUSTRE_2_15 = """snapshot_time             1710759783.271040288 secs.nsecs
start_time                1710700000.000000000 secs.nsecs
elapsed_time              59783.271040288 secs.nsecs
read_bytes                1843022 samples [bytes] 1 4194304 7730165571584 32418900173193216
write_bytes               9211 samples [bytes] 512 4194304 38629539840 162009012345600
read                      1843030 samples [usecs] 3 812044 5203114500 944203117781234
write                     9211 samples [usecs] 9 1306648 42117300 9123344512
ioctl                     114 samples [reqs]
open                      35955 samples [usecs] 0 172939 33936516 88367300333
close                     35955 samples [usecs] 63 194037 5402095 11956065309
page_fault                610 samples [usecs] 1 4120 81210 220113455
seek                      22 samples [usecs] 0 9 44 128
readdir                   60 samples [usecs] 0 2242 34741 52343869
getattr                   35956 samples [usecs] 0 85505 23170241 904252691
opencount                 35955 samples [reqs] 1 2 40433 49388
openclosetime             17977 samples [usecs] 34302 20804335 4185265858 2084188699
inode_permission          629305 samples [usecs] 0 147014 196719 76130795
"""
#: What autofs and others that keep no statistics have, and two mounts; RDMA has eight columns more than TCP, and with
#: nconnect a mount has several transports.
NFS_V3 = """device rootfs mounted on / with fstype rootfs
device /etc/auto.home mounted on /home with fstype autofs
no device mounted on /misc with fstype autofs
device nas1:/vol/home/ada mounted on /home/ada with fstype nfs statvers=1.1
\topts:\trw,vers=3,rsize=65536,wsize=65536,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,nolock,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=192.0.2.9,mountvers=3,mountport=4046,mountproto=tcp,local_lock=all
\tage:\t1396811
\tcaps:\tcaps=0x3fe7,wtmult=4096,dtsize=65536,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0
\tbytes:\t1207640230 90210 524288000 0 1210214218 90210 295483 23
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t     GETATTR: 3204 3204 0 410112 358848 12 1700 1788
\t      LOOKUP: 811 811 0 116784 194640 2 420 431
\t        READ: 1298 1301 1 207680 1210292152 6 79386 79407
\t       WRITE: 4 4 0 91000 640 0 12 12
\t  READDIRPLUS: 3 3 0 468 2100 0 4 4

"""
NFS_V4_RDMA = """device nas2:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\tro,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=rdma,nconnect=2,port=20049,timeo=600,retrans=2,sec=sys,clientaddr=192.0.2.7,local_lock=none
\tage:\t86400
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0x3ffbffff,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0xf9be3e,bm2=0x68800,acl=0x3,sessions,pnfs=not configured,lease_time=90,lease_expired=0
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t18 4410 0 0 9 31 4480 0 0 18 0 9 0 0 9 0 0 9 0 0 0 0 0 0 0 0 0
\tbytes:\t0 0 5497558138880 0 5497558138880 0 0 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\trdma 0 0 5 0 11 2621441 2621441 0 5242882 0 2621440 0 0 1099511627776 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\txprt:\trdma 0 0 5 0 11 2621440 2621440 0 5242880 0 2621440 0 0 1099511627776 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 5242880 5242880 0 1132462080 5498396999680 210000 31457280 31700000 0
\t       WRITE: 0 0 0 0 0 0 0 0 0
\t        OPEN: 18 18 0 6120 7344 0 9 9 0
\tOPEN_CONFIRM: 0 0 0 0 0 0 0 0 0
\t  READ_PLUS: 0 0 0 0 0 0 0 0 0

"""
