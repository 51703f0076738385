// -- the beginning ----------------------------------------------------------------------------

function setReport() {
  setView();
  setTables();
  setLegends();
  setCharts();
  setCosts();
  showOpened();
  watchSections();
}

setReport();
setReader();
if (data.reader.served) new Following();
{
  const { at } = address.read();
  if (at) goTo(at);
}
