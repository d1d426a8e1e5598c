-- Let a role run a publisher that cannot change tables, nor make tokens. Run it with psql as the role that owns the
-- tables, after the store was made, and again after each upgrade:
--
--   psql -d feeds -v runtime=zeh_publisher -f conf/postgresql-roles.sql
--
-- Variables: runtime, the role's name, which is made if it is not there (for that, the owner needs CREATEROLE);
-- password_file, a file with its password, if it is to be set.

\set ON_ERROR_STOP on
\if :{?runtime}
\else
  \set runtime zeh_publisher
\endif

BEGIN;

SELECT format('CREATE ROLE %I LOGIN', :'runtime')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'runtime') \gexec

\if :{?password_file}
  \set password `cat :'password_file'`
  ALTER ROLE :"runtime" PASSWORD :'password';
  \unset password
\endif

GRANT CONNECT ON DATABASE :"DBNAME" TO :"runtime";
GRANT USAGE ON SCHEMA zeroeventhub TO :"runtime";
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA zeroeventhub TO :"runtime";
GRANT USAGE ON ALL SEQUENCES IN SCHEMA zeroeventhub TO :"runtime";
-- The version of the tables is the owner's to change, and who may do what is told by the owner.
REVOKE INSERT, UPDATE, DELETE ON zeroeventhub.store, zeroeventhub.tokens FROM :"runtime";
-- The log of administrative acts is only added to.
REVOKE UPDATE, DELETE ON zeroeventhub.acts FROM :"runtime";

COMMIT;
